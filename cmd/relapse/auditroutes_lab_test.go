//go:build lab && night

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/mrt"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// In TestAuditRoutes GoBGP has the routes of a table dump, and announces them to FRR.
const (
	routesNetwork = "relapse-test-routes"
	routesSubnet  = "10.235.1.0/24"
	gobgpAddress  = "10.235.1.2"
	frrAddress    = "10.235.1.3"
	gobgpPort     = 50051
)

// An audit reads a million routes completely: the routes of GoBGP by gRPC, the routes of FRR by vtysh, and the routes
// of FRR's kernel by ip. It finds two wrong routes in FRR. `gobgp mrt inject` puts the routes into GoBGP, which
// announces them to FRR. RELAPSE_AUDIT_ROUTES is the number of routes; by default a million.
func TestAuditRoutes(t *testing.T) {
	routes := chosen(t, "RELAPSE_AUDIT_ROUTES", 1_000_000)
	const nodes = 20
	c := startEtcd(t)
	c.fill(t, nodes)
	c.startAPIServer(t)
	c.define(t)
	c.permit(t)

	dir := t.TempDir()
	dump := filepath.Join(dir, "routes.mrt")
	began := time.Now()
	writeDump(t, dump, routes, nodes)
	t.Logf("%d routes in a table dump of %d MB, written in %s", routes, must.Get(os.Stat(dump))(t).Size()>>20, since(began))
	startRouters(t, dir)
	began = time.Now()
	inContainer(t, "relapse-test-gobgp", "/lab/gobgp", "mrt", "inject", "global", "/lab/routes.mrt")
	wait(t, "GoBGP to have the routes", 10*time.Minute, func() error {
		return atLeast(routes+nodes, lineOf(inContainer(t, "relapse-test-gobgp", "/lab/gobgp", "global", "rib", "summary"), "Path"))
	})
	t.Logf("GoBGP has them %s after gobgp mrt inject began: %s", since(began), memoryOf(t, "relapse-test-gobgp"))
	wait(t, "FRR to have the routes", 10*time.Minute, func() error {
		return atLeast(routes+nodes, lineOf(inContainer(t, "relapse-test-frr", "vtysh", "-c", "show bgp ipv4 unicast statistics"), "Total Prefixes"))
	})
	wait(t, "FRR's kernel to have the routes", 10*time.Minute, func() error {
		return atLeast(routes+nodes, inContainer(t, "relapse-test-frr", "sed", "-n", `/^Main/,/^Local/s/.*Prefixes: *//p`, "/proc/net/fib_triestat"))
	})
	t.Logf("FRR and its kernel have them %s after: %s", since(began), memoryOf(t, "relapse-test-frr"))

	address := gobgpAddress + ":" + strconv.Itoa(gobgpPort)
	kubeconfig := c.kubeconfig(t)
	for _, test := range []struct {
		name, file string
		status     int
		findings   int // each of two nodes announces the other node's range
	}{
		// No node has announced the injected paths, and the FIB of GoBGP is not read.
		{"gobgp", `[{name: gobgp, kind: gobgp, address: "` + address + `", plaintext: true}]`, exitInconclusive, 0},
		{"frr", `[{name: frr, kind: frr, command: [docker, exec, relapse-test-frr]}]`, exitLatent, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := must.Write(t, filepath.Join(t.TempDir(), "routers.yaml"), test.file)
			declared := must.Get(bgprouter.Parse(file, []byte(test.file)))(t)
			readers := must.Get(bgprouter.Readers(declared, nil))(t)
			reader := readers[test.name]
			began := time.Now()
			paths := must.Get(reader.RIB(t.Context()))(t)
			must.Equal(t, "RIB", routes+nodes, len(paths))
			t.Logf("RIB: %d paths in %s", len(paths), since(began))
			paths = nil
			if test.name == "frr" {
				began = time.Now()
				fib := must.Get(reader.FIB(t.Context()))(t)
				learned := each.Where(fib, func(r snapshot.Route) bool { return r.Protocol == snapshot.RouteBGP })
				must.Equal(t, "FIB", routes+nodes, len(learned))
				t.Logf("FIB: %d routes in %s", len(fib), since(began))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			began = time.Now()
			got := end(t, program(ctx, "audit", "--kubeconfig", kubeconfig, "--routers", file, "--rate", "100", "-o", "json"))
			took := since(began)
			r := got.audited(t)
			t.Logf("the audit took %s, its %d reads %s; at most %d MiB of memory; status %d\n%s", took, r.Reads, r.Ended.Sub(r.Began).Round(100*time.Millisecond), r.Cost.PeakMemory>>20, got.status, sayFindings(r))
			counts := [...]int{got.status, len(r.Findings), len(r.Unread)}
			must.Equal(t, "status, findings, unread", [...]int{test.status, test.findings, 0}, counts)
		})
	}
}

// Faults in the tables of real routers are found in a real API server's cluster.
func TestAuditRouterFaults(t *testing.T) {
	faultsOnServer(t, "TestRouterFaults", 20, "-tags", "lab,night")
}

func since(began time.Time) time.Duration { return time.Since(began).Round(100 * time.Millisecond) }

// writeDump writes a table dump (TABLE_DUMP_V2) of a number of routes, and a route to the pods of each node of
// controlPlane.fill. The routes of the first two nodes are exchanged.
func writeDump(t *testing.T, name string, routes, nodes int) {
	t.Helper()
	f := must.Get(os.Create(name))(t)
	defer f.Close()
	out := bufio.NewWriter(f)
	at := uint32(time.Now().Unix())
	write := func(kind mrt.MRTSubTypeTableDumpv2, body mrt.Body) {
		m := must.Get(mrt.NewMRTMessage(at, mrt.TABLE_DUMPv2, kind, body))(t)
		must.Get(out.Write(must.Get(m.Serialize())(t)))(t)
	}
	write(mrt.PEER_INDEX_TABLE, mrt.NewPeerIndexTable("192.0.2.1", "", []*mrt.Peer{mrt.NewPeer("192.0.2.2", "192.0.2.2", 64500, true)}))
	number := uint32(0)
	route := func(prefix netip.Prefix, hop string, as ...uint32) {
		write(mrt.RIB_IPV4_UNICAST, mrt.NewRib(number, bgp.NewIPAddrPrefix(uint8(prefix.Bits()), prefix.Addr().String()), []*mrt.RibEntry{
			mrt.NewRibEntry(0, at, 0, []bgp.PathAttributeInterface{
				bgp.NewPathAttributeOrigin(0),
				bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, as)}),
				bgp.NewPathAttributeNextHop(hop),
			}, false),
		}))
		number++
	}
	prefix := func(first uint32, i int) netip.Prefix { // the ith /24
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], first<<24+uint32(i)<<8)
		return netip.PrefixFrom(netip.AddrFrom4(a), 24)
	}
	for i := range nodes {
		owner := i
		if i < 2 {
			owner = 1 - i
		}
		route(prefix(10, owner), netip.AddrFrom4([4]byte{172, 0, 0, byte(i)}).String(), 64513)
	}
	// gobgp ends before gobgpd has received the last routes, which are lost: the dump ends with repeated routes.
	for i := range routes + 10_000 {
		i %= routes
		// Some ten routes have the same attributes, as on the internet.
		group := uint32(i / 10)
		route(prefix(20, i), gobgpAddress, 64500, 100_000+group%1000, 200_000+group%70_000, 300_000+group)
	}
	must.NoError(t, out.Flush())
}

// startRouters runs GoBGP and FRR as peers, in containers on a network of their own. dir is /lab in GoBGP's container.
func startRouters(t *testing.T, dir string) {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/osrg/gobgp/v3").Output()
	must.NoError(t, err)
	build := exec.Command("go", "build", "-o", dir, "./cmd/gobgpd", "./cmd/gobgp")
	build.Dir, build.Env = strings.TrimSpace(string(module)), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building gobgpd: %v: %s", err, out)
	}
	const debian, frr = "relapse.dev/debian:bookworm", "relapse.dev/frr:10.3"
	loaded := loadedImages(t, dockerEngine(t), debian, frr)
	remove := func() { // also containers of an earlier test
		_ = exec.Command("docker", "rm", "--force", "--volumes", "relapse-test-gobgp", "relapse-test-frr").Run()
		_ = exec.Command("docker", "network", "rm", routesNetwork).Run()
	}
	remove()
	t.Cleanup(remove)
	run := func(args ...string) { ran(t, "", append([]string{"docker"}, args...)...) }
	write := func(name, text string) { must.Write(t, filepath.Join(dir, name), text) }
	write("gobgpd.toml", `
[global.config]
  as = 64513
  router-id = "`+gobgpAddress+`"
[[neighbors]]
  [neighbors.config]
    neighbor-address = "`+frrAddress+`"
    peer-as = 64524
`)
	write("frr.sh", frrDaemons+"vtysh -f /lab/frr.conf\nwait")
	write("frr.conf", `router bgp 64524
 bgp router-id `+frrAddress+`
 no bgp ebgp-requires-policy
 neighbor `+gobgpAddress+` remote-as 64513
 neighbor `+gobgpAddress+` ebgp-multihop 2
exit
ip route 172.0.0.0/24 `+gobgpAddress+`
`)
	run("network", "create", "--internal", "--subnet", routesSubnet, routesNetwork)
	run("run", "--detach", "--name", "relapse-test-frr", "--network", routesNetwork, "--ip", frrAddress, "--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN",
		"--volume", dir+":/lab", "--entrypoint", "sh", loaded[frr], "/lab/frr.sh")
	run("run", "--detach", "--name", "relapse-test-gobgp", "--network", routesNetwork, "--ip", gobgpAddress,
		"--volume", dir+":/lab", "--entrypoint", "/lab/gobgpd", loaded[debian], "--config-file", "/lab/gobgpd.toml", "--log-plain")
	wait(t, "the session of GoBGP and FRR", time.Minute, func() error {
		out, err := exec.CommandContext(t.Context(), "docker", "exec", "relapse-test-frr", "vtysh", "-c", "show bgp neighbors "+gobgpAddress).Output()
		if err != nil || !bytes.Contains(out, []byte("BGP state = Established")) {
			return fmt.Errorf("no session: %v", err)
		}
		return nil
	})
}

// lineOf returns what follows a word in the line that contains it.
func lineOf(text, word string) string {
	for line := range strings.Lines(text) {
		if _, value, found := strings.Cut(line, word); found {
			return strings.Trim(value, " \t\n:,")
		}
	}
	return text
}

// atLeast returns an error unless the text begins with a number >= want.
func atLeast(want int, text string) error {
	number, _, _ := strings.Cut(strings.TrimSpace(text), ",")
	if got, err := strconv.Atoi(number); err != nil || got < want {
		return fmt.Errorf("%q, want %d", text, want)
	}
	return nil
}

func memoryOf(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(inContainer(t, name, "sh", "-c", `for p in /proc/[0-9]*; do
	name=$(cat $p/comm); kib=$(sed -n 's/^VmRSS:\s*\([0-9]*\) kB/\1/p' $p/status)
	case $name in gobgpd|bgpd|zebra) echo "$name $((kib / 1024)) MiB";; esac
done`))
}
