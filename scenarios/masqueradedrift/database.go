package masqueradedrift

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/await"
)

// databases are the hosts that MariaDB runs on.
var databases = []string{"db", "neighbour"}

// mysqlPort is MariaDB's.
const mysqlPort = 3306

// errorLog and generalLog are where the server says whom it turned away, and
// who came (images/mariadb/server.cnf).
const (
	errorLog   = "/var/log/mysql/error.log"
	generalLog = "/var/log/mysql/general.log"
)

// app is the application's account.
var app = probe.Login{User: "app", Password: "only-from-the-pod-range", Database: "app"}

// grants let the application in from the pod range, and from nowhere else.
// Monitoring may come from anywhere: with no account at all for an address the
// server would not get as far as to ask for a user.
func grants() string {
	mask := netip.AddrFrom4([4]byte{255, 255, 255, 128})
	return fmt.Sprintf(`
CREATE DATABASE IF NOT EXISTS %[1]s;
CREATE USER IF NOT EXISTS '%[2]s'@'%[3]s/%[4]s' IDENTIFIED BY '%[5]s';
GRANT ALL ON %[1]s.* TO '%[2]s'@'%[3]s/%[4]s';
CREATE USER IF NOT EXISTS 'monitor'@'%%' IDENTIFIED BY 'from-anywhere';
`, app.Database, app.User, podCIDR.Addr(), mask, app.Password)
}

// startDatabases starts MariaDB where it does not run yet, and empties its
// logs.
func startDatabases(ctx context.Context, r *framework.Run) error {
	var servers errgroup.Group
	for _, name := range databases {
		servers.Go(func() error { return startDatabase(ctx, r, name) })
	}
	return servers.Wait()
}

func startDatabase(ctx context.Context, r *framework.Run, name string) error {
	host := r.Lab.Host(name)
	// The package leaves the socket's folder to systemd.
	const start = `install -d -o mysql /run/mysqld
pidof mariadbd >/dev/null || setsid mariadbd --user=mysql </dev/null >/dev/null 2>&1 &`
	if _, err := host.Exec(ctx, "sh", "-ec", start); err != nil {
		return fmt.Errorf("starting MariaDB: %w", err)
	}
	err := await.Until(ctx, "MariaDB on "+name, 100*time.Millisecond, 30*time.Second,
		func(ctx context.Context) (bool, string, error) {
			said, err := host.Exec(ctx, "mariadb-admin", "ping")
			return err == nil, strings.TrimSpace(said), err
		})
	if err != nil {
		log, _ := host.Exec(ctx, "tail", "-n", "5", errorLog)
		return fmt.Errorf("%w; its log ends with: %s", err, strings.TrimSpace(log))
	}
	if _, err := host.ExecInput(ctx, strings.NewReader(grants()), "mariadb"); err != nil {
		return fmt.Errorf("granting to the pod range: %w", err)
	}
	if _, err := host.Exec(ctx, "truncate", "--size=0", errorLog, generalLog); err != nil {
		return fmt.Errorf("emptying MariaDB's logs: %w", err)
	}
	return nil
}

// deniedTo are the lines of a server's log about the application turned away
// at an address.
func deniedTo(log string, addr netip.Addr) []string {
	var lines []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, fmt.Sprintf("Access denied for user '%s'@'%s'", app.User, addr)) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// serverDenies asserts that the server's own log says whom it turned away:
// the application, at the address of each node. The log is evidence.
func serverDenies(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := r.Lab.Host("db").Exec(ctx, "cat", errorLog)
	if err != nil {
		return false, "", err
	}
	var missing framework.Mismatches
	for _, n := range nodes {
		if len(deniedTo(log, addressOf(n))) == 0 {
			missing.Addf("no line about %s, %s", n, addressOf(n))
		}
	}
	if holds, saw, err := missing.Result(); !holds || err != nil {
		return false, saw, err
	}
	r.Evidence("db-error-log", log)
	return true, "", keepGeneralLog(ctx, r)
}

// keepGeneralLog keeps the first and the last connections that the server had.
func keepGeneralLog(ctx context.Context, r *framework.Run) error {
	log, err := r.Lab.Host("db").Exec(ctx, "sh", "-c", "grep -a Connect "+generalLog+" | sed -n '1,50p;$p'")
	if err != nil {
		return fmt.Errorf("reading MariaDB's general log: %w", err)
	}
	r.Evidence("db-general-log", log)
	return nil
}

// serverAdmits asserts that the server has turned nobody away.
func serverAdmits(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := r.Lab.Host("db").Exec(ctx, "cat", errorLog)
	if err != nil {
		return false, "", err
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "Access denied") {
			return false, strings.TrimSpace(line), nil
		}
	}
	return true, "", keepGeneralLog(ctx, r)
}
