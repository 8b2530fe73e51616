package upgrade

import (
	"cmp"
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// An endpoint is behind an address if it has answered. None is if a connection is refused, or if several in a row have
// no answer: a single one may be slow.
func TestConnectionOf(t *testing.T) {
	to, old, wanted := netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("10.63.65.2"), netip.MustParseAddr("10.63.66.3")
	const tracked = connected + "\ntcp      6 119 TIME_WAIT src=10.63.4.22 dst=10.96.0.9 sport=5001 dport=7007 src=10.63.66.3 dst=10.63.4.22 sport=7007 dport=5001 [ASSURED] mark=0 use=1\n"
	const refused = "bash: connect: Connection refused\nbash: line 1: /dev/tcp/10.96.0.9/7007: Connection refused\n"
	for _, test := range []struct {
		name, said string
		endpoint   netip.Addr
		silent     int
		want       bool
		says       string
	}{
		{"the endpoint answers", tracked, wanted, 0, true, "a connection to 10.96.0.9: answered by 10.63.66.3"},
		{"another one answers", tracked, old, 0, false, "a connection to 10.96.0.9: answered by 10.63.66.3"},
		{"one answers that is not tracked", connected + "\n", wanted, 0, false, "a connection to 10.96.0.9: answered, and the node does not track by whom"},
		{"one answers, and there should be none", tracked, netip.Addr{}, 0, false, "a connection to 10.96.0.9: answered by 10.63.66.3"},
		{"refused, and there should be one", refused, wanted, 0, false, "a connection to 10.96.0.9: bash: connect: Connection refused\nbash: line 1: /dev/tcp/10.96.0.9/7007: Connection refused"},
		{"refused", refused, netip.Addr{}, 0, true, ""},
		{"one without an answer", "", netip.Addr{}, 1, false, "a connection to 10.96.0.9: no answer within 1s"},
		{"several without an answer", "", netip.Addr{}, silentFor, true, ""},
		{"no answer, and there should be one", "", wanted, silentFor, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := connectionOf(to, test.said)
			must.Equal(t, c, test.want, c.leadsTo(test.endpoint, test.silent, true))
			untracked := test.want || test.said == connected+"\n" && test.endpoint.IsValid()
			must.Equal(t, c, untracked, c.leadsTo(test.endpoint, test.silent, false))
			must.Equal(t, "", cmp.Or(test.says, c.String()), c.String())
		})
	}
}
