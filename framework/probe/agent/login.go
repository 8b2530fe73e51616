package agent

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// Errors with which a MySQL server turns a client away, by their numbers in
// the protocol (mysqld_error.h). Both name the address that it comes from.
const (
	accessDenied     = 1045 // Access denied for user 'app'@'10.4.94.31' (using password: YES)
	accessDeniedHere = 1698 // Access denied for user 'app'@'10.4.94.31': MariaDB, where no account is for that address
	hostNotAllowed   = 1130 // Host '10.4.94.31' is not allowed to connect to this MariaDB server
)

// logInTo returns a function that logs in to a MySQL server and asks how it sees the client.
func (a *Agent) logInTo(s *session, p *sending, probe wire.Probe) (func(slot uint32), error) {
	config := mysql.NewConfig()
	config.Net, config.Addr = "tcp", probe.To.String()
	config.User, config.Passwd, config.DBName = probe.Login.User, probe.Login.Password, probe.Login.Database
	config.Timeout, config.ReadTimeout, config.WriteTimeout = probe.Timeout, probe.Timeout, probe.Timeout
	config.Logger = &mysql.NopLogger{} // failures are in the report
	dialer := net.Dialer{KeepAlive: -1}
	if !a.addr.IsUnspecified() {
		dialer.LocalAddr = &net.TCPAddr{IP: a.addr.AsSlice()}
	}
	config.DialFunc = func(ctx context.Context, _, to string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp4", to)
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("configuring the MySQL driver: %w", err)
	}
	return func(slot uint32) {
		ctx, cancel := context.WithTimeout(s.ctx, probe.Timeout)
		defer cancel()
		start := wire.Monotonic()
		answer, err := logIn(ctx, connector, probe.Login.User)
		rtt := wire.Monotonic() - start
		a.mu.Lock()
		defer a.mu.Unlock()
		if err != nil {
			p.refused(reason(err))
			return
		}
		if answer.Denied == "" {
			p.answered(slot, rtt)
		}
		p.loggedIn(answer, slot)
	}, nil
}

// logIn logs in once, asks the server who the client is, and logs out. That
// the server turns the client away is an answer and no error.
func logIn(ctx context.Context, connector driver.Connector, user string) (wire.Answer, error) {
	conn, err := connector.Connect(ctx)
	denials := []uint16{accessDenied, accessDeniedHere, hostNotAllowed}
	if denied := (*mysql.MySQLError)(nil); errors.As(err, &denied) && slices.Contains(denials, denied.Number) {
		address, err := deniedAddress(denied.Message)
		return wire.Answer{Client: user + "@" + address.String(), Address: address, Denied: denied.Message}, err
	}
	if err != nil {
		return wire.Answer{}, err
	}
	defer conn.Close()
	rows, err := conn.(driver.QueryerContext).QueryContext(ctx, "SELECT USER(), CURRENT_USER()", nil)
	if err != nil {
		return wire.Answer{}, err
	}
	defer rows.Close()
	row := make([]driver.Value, 2)
	if err := rows.Next(row); err != nil {
		return wire.Answer{}, fmt.Errorf("reading USER(): %w", err)
	}
	answer := wire.Answer{Client: text(row[0]), Account: text(row[1])}
	if i := strings.LastIndexByte(answer.Client, '@'); i >= 0 {
		answer.Address, err = netip.ParseAddr(answer.Client[i+1:])
	}
	return answer, err
}

func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

var deniedFrom = regexp.MustCompile(`(?:@|^Host )'([^']*)'`)

func deniedAddress(message string) (netip.Addr, error) {
	match := deniedFrom.FindStringSubmatch(message)
	if match == nil {
		return netip.Addr{}, fmt.Errorf("no address in %q", message)
	}
	address, err := netip.ParseAddr(match[1])
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no address in %q: is skip-name-resolve set?", message)
	}
	return address, nil
}

// reason names what kept a login from being answered, in few words, so that it can be counted.
func reason(err error) string {
	var errno syscall.Errno
	var server *mysql.MySQLError
	switch {
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	case errors.As(err, &server):
		return fmt.Sprintf("MySQL error %d", server.Number)
	case errors.Is(err, io.EOF), errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return "connection lost"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "no answer in time"
	}
	return err.Error()
}

func (p *sending) loggedIn(answer wire.Answer, slot uint32) {
	for i := range p.logins {
		previous := &p.logins[i]
		if previous.Client == answer.Client && previous.Account == answer.Account && previous.Denied == answer.Denied {
			previous.Slots.Add(slot)
			return
		}
	}
	answer.Slots.Add(slot)
	p.logins = append(p.logins, answer)
}
