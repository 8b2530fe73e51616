package agent

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestDeniedAddress(t *testing.T) {
	for _, test := range []struct {
		name, message string
		want          string // empty: none
	}{
		{"wrong host for the user", "Access denied for user 'app'@'10.4.94.31' (using password: YES)", "10.4.94.31"},
		{"no account for the host", "Access denied for user 'app'@'10.4.94.31'", "10.4.94.31"},
		{"host that no user may come from", "Host '10.4.94.31' is not allowed to connect to this MariaDB server", "10.4.94.31"},
		{"user with an @", "Access denied for user 'a@b'@'10.20.30.40' (using password: NO)", "10.20.30.40"},
		{"a name in place of an address", "Access denied for user 'app'@'node1.example.com' (using password: YES)", ""},
		{"something else", "Too many connections", ""},
	} {
		got, err := deniedAddress(test.message)
		if (err == nil) != (test.want != "") || err == nil && got.String() != test.want {
			t.Errorf("%s: %s, %v; want %q", test.name, got, err, test.want)
		}
	}
}

func TestReason(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "ECONNREFUSED"},
		{"the server's own", &mysql.MySQLError{Number: 1040, Message: "Too many connections"}, "MySQL error 1040"},
		{"closed", driver.ErrBadConn, "connection lost"},
		{"too late", fmt.Errorf("dialling: %w", context.DeadlineExceeded), "no answer in time"},
		{"anything", errors.New("strange"), "strange"},
	} {
		must.Equal(t, test.name, test.want, reason(test.err))
	}
}

func TestLoggedInJoinsWhatIsTheSame(t *testing.T) {
	var p sending
	node, pod := netip.MustParseAddr("10.4.94.31"), netip.MustParseAddr("10.20.30.35")
	denied := wire.Answer{Client: "app@10.4.94.31", Address: node, Denied: "Access denied"}
	admitted := wire.Answer{Client: "app@10.20.30.35", Address: pod, Account: "app@10.20.30.0/255.255.255.0"}
	for slot, answer := range []wire.Answer{admitted, admitted, denied, denied, admitted} {
		p.loggedIn(answer, uint32(slot))
	}
	admitted.Slots, denied.Slots = wire.Runs{{0, 1}, {4, 4}}, wire.Runs{{2, 3}}
	must.Equal(t, "", []wire.Answer{admitted, denied}, p.logins)
	must.Equal(t, "quiet, with logins to report", false, p.quiet())
	must.Equal(t, "reported", 2, len(p.report().Logins))
	must.Equal(t, "quiet, with none left", true, p.quiet())
}

// Nobody listens at the port: the attempt is lost and counted by its errno.
func TestLogInWhereNobodyListens(t *testing.T) {
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	to := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	config := mysql.Config{Net: "tcp", Addr: to.String(), User: "app", AllowNativePasswords: true, MaxAllowedPacket: 1 << 20, Logger: &mysql.NopLogger{}}
	answer, err := logIn(t.Context(), must.Get(mysql.NewConnector(&config))(t), "app")
	must.Fail(t, err)
	must.Equal(t, err, "ECONNREFUSED", reason(err))
	must.Equal(t, answer.Denied, false, strings.Contains(answer.Denied, "denied"))
}
