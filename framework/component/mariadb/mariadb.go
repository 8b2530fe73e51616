// Package mariadb runs Debian's MariaDB on hosts of a lab: a database outside of the
// cluster that grants access by client address and logs the clients.
package mariadb

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Version is the server's version, and Image the image of hosts that run it.
const (
	Version = "10.11"
	Image   = "relapse.dev/mariadb:" + Version
)

// Port is where the server listens.
const Port = 3306

// errorLog has the denied logins, and generalLog all connections (images/mariadb/server.cnf).
const (
	errorLog   = "/var/log/mysql/error.log"
	generalLog = "/var/log/mysql/general.log"
)

const startedWithin = 30 * time.Second

// Started is the action that starts the server on a host if need be, executes statements as root and empties its logs.
func Started(host, statements string) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error { return start(ctx, l.Host(host), statements) })
}

func start(ctx context.Context, host *kindlab.Host, statements string) error {
	// The package leaves the socket's folder to systemd.
	const start = `install -d -o mysql /run/mysqld
pidof mariadbd >/dev/null || setsid mariadbd --user=mysql </dev/null >/dev/null 2>&1 &`
	if _, err := host.Exec(ctx, "sh", "-ec", start); err != nil {
		return fmt.Errorf("starting MariaDB: %w", err)
	}
	err := await.Until(ctx, "MariaDB on "+host.Name(), 100*time.Millisecond, startedWithin,
		func(ctx context.Context) (bool, string, error) {
			said, err := host.Exec(ctx, "mariadb-admin", "ping")
			return err == nil, strings.TrimSpace(said), err
		})
	if err != nil {
		log, _ := host.Exec(ctx, "tail", "-n", "5", errorLog)
		return fmt.Errorf("%w; its log ends with: %s", err, strings.TrimSpace(log))
	}
	if _, err := host.ExecInput(ctx, strings.NewReader(statements), "mariadb"); err != nil {
		return fmt.Errorf("executing statements on MariaDB: %w", err)
	}
	if _, err := host.Exec(ctx, "truncate", "--size=0", errorLog, generalLog); err != nil {
		return fmt.Errorf("emptying MariaDB's logs: %w", err)
	}
	return nil
}

// ErrorLog is the server's error log since Started.
func ErrorLog(ctx context.Context, host *kindlab.Host) (string, error) {
	log, err := host.Exec(ctx, "cat", errorLog)
	if err != nil {
		return "", fmt.Errorf("reading MariaDB's error log: %w", err)
	}
	return log, nil
}

// Denied reports whether an error log has a line about a user who was denied at an address.
func Denied(log, user string, address netip.Addr) bool {
	return strings.Contains(log, fmt.Sprintf("Access denied for user '%s'@'%s'", user, address))
}
