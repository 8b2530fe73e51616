package masqueradedrift

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/framework/probe"
)

// app is the application's account.
var app = probe.Login{User: "app", Password: "only-from-the-pod-range", Database: "app"}

// grants let the application in from the pod range, and from nowhere else. The
// account of monitoring is for any address: without one the server would turn
// unknown addresses away before it asks who the user is.
func grants() string {
	mask := netip.AddrFrom4([4]byte{255, 255, 255, 128})
	return fmt.Sprintf(`
CREATE DATABASE IF NOT EXISTS %[1]s;
CREATE USER IF NOT EXISTS '%[2]s'@'%[3]s/%[4]s' IDENTIFIED BY '%[5]s';
GRANT ALL ON %[1]s.* TO '%[2]s'@'%[3]s/%[4]s';
CREATE USER IF NOT EXISTS 'monitor'@'%%' IDENTIFIED BY 'from-anywhere';
`, app.Database, app.User, podCIDR.Addr(), mask, app.Password)
}

// startDatabases runs MariaDB on every host of the lab.
func startDatabases(ctx context.Context, r *framework.Run) error {
	var servers errgroup.Group
	for _, host := range lab.Hosts {
		servers.Go(func() error { return mariadb.Start(ctx, r.Lab.Host(host.Name), grants()) })
	}
	return servers.Wait()
}

// serverDenies asserts that the server's own log says whom it turned away:
// the application, at the address of each node. The log is evidence.
func serverDenies(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := mariadb.ErrorLog(ctx, r.Lab.Host(db.Name))
	if err != nil {
		return false, "", err
	}
	var missing framework.Mismatches
	for _, n := range nodes {
		if len(mariadb.Denied(log, app.User, addressOf(n))) == 0 {
			missing.Addf("no line about %s, %s", n, addressOf(n))
		}
	}
	if holds, saw, err := missing.Result(); !holds || err != nil {
		return false, saw, err
	}
	r.Evidence("db-error-log", log)
	return true, "", keepConnections(ctx, r)
}

// serverAdmits asserts that the server has turned nobody away.
func serverAdmits(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := mariadb.ErrorLog(ctx, r.Lab.Host(db.Name))
	if err != nil {
		return false, "", err
	}
	if denied := mariadb.Denied(log, "", netip.Addr{}); len(denied) > 0 {
		return false, denied[0], nil
	}
	return true, "", keepConnections(ctx, r)
}

// keepConnections keeps, as evidence, who has connected to the database.
func keepConnections(ctx context.Context, r *framework.Run) error {
	connections, err := mariadb.Connections(ctx, r.Lab.Host(db.Name))
	r.Evidence("db-general-log", connections)
	return err
}
