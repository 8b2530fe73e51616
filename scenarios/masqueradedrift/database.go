package masqueradedrift

import (
	"context"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
)

// app is the application's account.
var app = probe.Login{User: "app", Password: "only-from-the-pod-range", Database: "app"}

// grants admit the application from the pod range alone. The account of monitoring is for any
// address: without one the server would deny unknown addresses before it asks for the user.
const grants = `
CREATE DATABASE IF NOT EXISTS app;
CREATE USER IF NOT EXISTS 'app'@'10.20.30.0/255.255.255.128' IDENTIFIED BY 'only-from-the-pod-range';
GRANT ALL ON app.* TO 'app'@'10.20.30.0/255.255.255.128';
CREATE USER IF NOT EXISTS 'monitor'@'%' IDENTIFIED BY 'from-anywhere';
`

func startDatabases(ctx context.Context, r *framework.Run) error {
	var servers errgroup.Group
	for _, host := range r.Topology.Hosts {
		servers.Go(func() error { return mariadb.Start(ctx, labaccess.Lab(r).Host(host.Name), grants) })
	}
	return servers.Wait()
}

// serverDenies asserts that the server's own log has a denied login of the application
// from the address of each node. The log is evidence.
func serverDenies(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := mariadb.ErrorLog(ctx, labaccess.Lab(r).Host(db.Name))
	if err != nil {
		return false, "", err
	}
	var missing framework.Mismatches
	for _, n := range nodes {
		if len(mariadb.Denied(log, app.User, addressOf(r, n))) == 0 {
			missing.Addf("no line about %s, %s", n, addressOf(r, n))
		}
	}
	if holds, saw, err := missing.Result(); !holds || err != nil {
		return false, saw, err
	}
	r.Evidence("db-error-log", log)
	return true, "", keepConnections(ctx, r)
}

// serverAdmits asserts that the server has denied no login.
func serverAdmits(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := mariadb.ErrorLog(ctx, labaccess.Lab(r).Host(db.Name))
	if err != nil {
		return false, "", err
	}
	if denied := mariadb.Denied(log, "", netip.Addr{}); len(denied) > 0 {
		return false, denied[0], nil
	}
	return true, "", keepConnections(ctx, r)
}

func keepConnections(ctx context.Context, r *framework.Run) error {
	connections, err := mariadb.Connections(ctx, labaccess.Lab(r).Host(db.Name))
	r.Evidence("db-general-log", connections)
	return err
}
