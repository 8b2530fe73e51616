package audit

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

// plain is a session in FRR's format, and numbered an answer with only that session.
const (
	plain    = `"remoteAs":64513,"localAs":64524,"remoteRouterId":"198.51.100.11","bgpState":"Established","bgpTimerUpEstablishedEpoch":1790000000,"addressFamilyInfo":{"ipv4Unicast":{"acceptedPrefixCounter":1}}`
	numbered = `{"198.51.100.11":{` + plain + `}}`

	// fib is the output of ip(8), with numbers, and the others are routes to the node.
	fib         = `[{"dst":"198.51.100.0/24","protocol":"2","scope":"253","dev":"swp1","flags":[]},{"dst":"10.100.1.0/24",%s,"dev":"swp1","protocol":"186","metric":20,"flags":[]}]`
	byNode      = `"gateway":"198.51.100.11"`
	byInterface = `"via":{"family":"inet6","host":"fe80::5054:ff:fe00:11"}`
)

// A router with real answers is judged by its route to the node's range, or by the lack of a route.
func TestRoutersAnswers(t *testing.T) {
	for _, test := range []struct {
		name, rib, neighbors string // files of testdata/routers, or answers
		hop                  string // of the range in the FIB
		lost                 bool   // the router only has a route to another range of the node
		findings             []string
		notJudged            string
	}{
		{"AS numbers with dots", "frr-asdot.json", numbered, byNode, false, nil, ""},
		{"imported from a VRF", "frr-imported-from-vrf.json", numbered, byNode, false, nil, ""},
		{"unnumbered", "frr-unnumbered-routes.json", "frr-unnumbered-neighbors.json", byInterface, false, nil, ""},
		{"a filter", "frr-asdot.json", "frr-filtered-neighbors.json", byNode, false, nil, ""},
		{"lost", "frr-asdot.json", numbered, byNode, true, []string{"active unannounced 10.100.1.0/24"}, ""},
		{"lost, unnumbered", "frr-unnumbered-routes.json", "frr-unnumbered-neighbors.json", byInterface, true, []string{"active unannounced 10.100.1.0/24"}, ""},
		{"lost, behind a filter", "frr-asdot.json", "frr-filtered-neighbors.json", byNode, true, nil, rejects},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			answer := func(name, text string) string {
				if strings.HasSuffix(text, ".json") {
					text = string(must.Read(t, "testdata/routers/"+text))
				}
				if test.lost {
					text = strings.ReplaceAll(text, "10.100.1.0", "10.100.2.0")
				}
				return must.Write(t, filepath.Join(dir, name), text)
			}
			script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *vrfs*) echo '{\"vrfs\":{}}';; 'ip -6'*) echo '[]';; *ipv6*) echo '{\"routes\":{}}';; *unicast*) cat %s;; *neighbors*) cat %s;; *) cat %s;; esac",
				answer("rib", test.rib), answer("neighbors", test.neighbors), answer("fib", fmt.Sprintf(fib, test.hop)))
			file := filepath.Join(dir, "run")
			must.NoError(t, os.WriteFile(file, []byte(script), 0o755))
			readers := must.Get(bgprouter.Readers([]bgprouter.Declared{{Name: "tor1", Kind: bgprouter.FRR, Command: []string{file}}}, nil))(t)
			ranges := "10.100.1.0/24"
			if test.lost {
				ranges += ", 10.100.2.0/24"
			}
			s := newServer(t)
			s.object(t, node("node1", "198.51.100.11", "True", "", "podCIDR: 10.100.1.0/24, podCIDRs: ["+ranges+"]"))
			s.object(t, pod("web-1", "node1", "10.100.1.7"))
			reads := must.Get(Read(t.Context(), Access{Config: s.config(t), Routing: readers}, time.Millisecond, func(string) {}))(t)
			r := must.Get(Judge(reads))(t)
			must.Equal(t, "findings", test.findings, found(r.Findings), cmpopts.EquateEmpty())
			must.Contain(t, fmt.Sprint(r.NotJudged), test.notJudged)
			must.Equal(t, "unread, and open", [...]any{0, test.notJudged != ""}, [...]any{len(r.Unread), r.Open()})
		})
	}
}

// A router feeds its own peer, which has no address.
func TestRouterFeedsItself(t *testing.T) {
	routers := []bgprouter.Declared{{Name: "tor1", Kind: bgprouter.BMP, Address: "127.0.0.1"}}
	free := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := free.Addr().String()
	must.NoError(t, free.Close())
	station := must.Get(bgprouter.Listen(address, routers, func(text string) { t.Log(text) }))(t)
	t.Cleanup(func() { _ = station.Close() })
	conn := must.Get(net.Dial("tcp", address))(t)
	t.Cleanup(func() { conn.Close() })
	must.Get(conn.Write(must.Read(t, "testdata/routers/bmp-own-peer-without-address.bmp")))(t)
	reader := must.Get(bgprouter.Readers(routers, station))(t)["tor1"]
	must.NoError(t, await.Until(t.Context(), "the router's paths", 10*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		paths, err := reader.RIB(ctx)
		return err == nil && len(paths) == 1, fmt.Sprint(paths, err), nil
	}))
}
