package router

import (
	"encoding/json"
	"flag"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

const goodConfig = `{
	"as": 64524,
	"router_id": "10.4.36.239",
	"listen": ["10.4.94.2"],
	"peers": [{"prefix": "10.4.94.0/24", "as": 64513}],
	"sockets": "/run/relapse"
}`

func TestReadConfig(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replace [2]string
		want    []string // parts of the error; none for success
	}{
		{name: "good"},
		{name: "unknown field", replace: [2]string{`"as": 64524`, `"asn": 64524`}, want: []string{`unknown field "asn"`}},
		{name: "same prefix twice", replace: [2]string{`"as": 64513}`, `"as": 64513}, {"prefix": "10.4.94.0/24", "as": 64514}`},
			want: []string{"peers[1].prefix: 10.4.94.0/24 is also the prefix of peers[0]"}},
		{name: "BFD without FRR", want: []string{"peers[0].bfd: gobgp has no BFD"},
			replace: [2]string{`"as": 64513}`, `"as": 64513, "bfd": {"receive": 300000000, "transmit": 300000000, "multiplier": 3}}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(goodConfig, tt.replace[0], tt.replace[1], 1)
			c, err := ReadConfig(strings.NewReader(text))
			if len(tt.want) == 0 {
				must.NoError(t, err)
				again := must.Get(ReadConfig(strings.NewReader(string(must.Get(json.Marshal(c))(t)))))(t)
				must.Equal(t, "written and read again", c, again, byValue)
				return
			}
			must.Fail(t, err, tt.want...)
		})
	}
}

var update = flag.Bool("update", false, "write the programs' configurations to testdata")

// The programs' configurations, from one declaration: an eBGP and an iBGP network, graceful
// restart on one, and a static route with two next hops.
func TestConfigurations(t *testing.T) {
	c := Config{
		AS: 64524, RouterID: addr("192.0.2.1"), Listen: []netip.Addr{addr("192.0.2.1"), addr("192.0.2.129")},
		Peers: []Peers{
			{Prefix: prefix("192.0.2.0/25"), AS: 64513, GracefulRestart: true,
				BFD: topology.BFD{Receive: 300 * time.Millisecond, Transmit: 150 * time.Millisecond, Multiplier: 5}, BFDPeers: []netip.Addr{addr("192.0.2.11")}},
			{Prefix: prefix("192.0.2.128/25"), AS: 64524},
		},
	}
	statics := []Static{{Prefix: prefix("10.5.113.0/24"), NextHops: []netip.Addr{addr("192.0.2.2"), addr("192.0.2.130")}}}
	bgpd := must.Get(FRRConfig(c))(t)
	for name, got := range map[string]string{"bgpd.conf": bgpd, "bfdd.conf": bfdConfig(c), "bird.conf": must.Get(birdConf(c, statics))(t)} {
		if *update {
			must.Write(t, "testdata/"+name, got)
		}
		want := must.Read(t, "testdata/"+name)
		must.Equal(t, name, string(want), got)
	}
	want := []string{"ip route 10.5.113.0/24 192.0.2.2", "ip route 10.5.113.0/24 192.0.2.130"}
	must.Equal(t, "FRR's static routes", want, staticCommands(statics))
}
