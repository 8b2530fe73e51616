//go:build lab && night

package audit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

const (
	faultsNetwork = "relapse-test-faults"
	faultsSubnet  = "10.235.2."
)

// machines has the last number of the address of each node and router.
var machines = map[string]string{"worker1": "11", "worker2": "12", "frr": "252", "bird": "253"}

// nodeConf is the BIRD configuration of a node ($i is 1 or 2, $o the other number). It announces the node's pod range,
// and on worker1, which has the endpoint, the Service.
const nodeConf = `router id 10.235.2.1$i;
protocol device {}
protocol static pods { ipv4; route 10.244.$i.0/24 blackhole; }
protocol static stolen { disabled; ipv4; route 10.244.$o.0/24 blackhole; }
protocol static service { $service ipv4; route 192.0.2.1/32 blackhole; }
template bgp tor {
	local 10.235.2.1$i as 64513;
	connect delay time 1; connect retry time 1; error wait time 1, 1; graceful restart on;
	ipv4 { import none; export where source = RTS_STATIC; };
}
protocol bgp frr from tor { neighbor 10.235.2.252 as 64524; }
protocol bgp bird from tor { neighbor 10.235.2.253 as 64524; }
`

const birdConf = `router id 10.235.2.253;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; merge paths on limit 64; }
protocol static towards1 { disabled; ipv4; route 10.244.2.0/24 via 10.235.2.11; }
protocol static gone { disabled; ipv4; route 10.244.2.0/24 via 10.235.2.78; }
protocol static hole { disabled; ipv4; route 10.244.2.0/24 blackhole; }
template bgp node { local 10.235.2.253 as 64524; passive; ipv4 { import all; export none; }; }
protocol bgp node1 from node { neighbor 10.235.2.11 as 64513; }
protocol bgp node2 from node { neighbor 10.235.2.12 as 64513; }
`

const frrConf = `router bgp 64524
 bgp router-id 10.235.2.252
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor 10.235.2.11 remote-as 64513
 neighbor 10.235.2.12 remote-as 64513
`

const frrStart = `mkdir -p /run/frr /var/lib/frr; chown frr:frr /run/frr /var/lib/frr
for d in mgmtd zebra staticd bgpd; do /usr/lib/frr/$d & done
until vtysh -d bgpd -c "show version" && vtysh -d staticd -c "show version"; do sleep 0.1; done >/dev/null 2>&1
vtysh -f /lab/frr.conf
wait`

// routerFault is a fault in tables of routers: the commands that make it, and undo it, each on a machine. TOR stands
// for the router that is read, and OTHER for the other router.
type routerFault struct {
	name     string
	do, undo []onMachine
	findings []string
}

type onMachine struct{ machine, command string }

func routerFaults(kind string) []routerFault {
	static := func(name, protocol, route string, findings ...string) routerFault {
		on, off := "birdc enable "+protocol, "birdc disable "+protocol
		if kind == "frr" {
			on, off = "vtysh -c 'configure terminal' -c 'ip route "+route+"'", "vtysh -c 'configure terminal' -c 'no ip route "+route+"'"
		}
		return routerFault{name, []onMachine{{"TOR", on}}, []onMachine{{"TOR", off}}, findings}
	}
	move := func(name, address, from, to string, findings ...string) routerFault {
		ip := func(verb string) string { return "ip address " + verb + " " + address + "/32 dev eth0" }
		return routerFault{name, []onMachine{{from, ip("del")}, {to, ip("add")}}, []onMachine{{to, ip("del")}, {from, ip("add")}}, findings}
	}
	return []routerFault{
		{"worker2's range is withdrawn", []onMachine{{"worker2", "birdc disable pods"}}, []onMachine{{"worker2", "birdc enable pods"}}, []string{"active unannounced 10.244.2.0/24"}},
		{"worker1 announces worker2's range", []onMachine{{"worker2", "birdc disable pods"}, {"worker1", "birdc enable stolen"}},
			[]onMachine{{"worker1", "birdc disable stolen"}, {"worker2", "birdc enable pods"}}, []string{"latent wrong-announcer 10.244.2.0/24"}},
		{"worker2's speaker is killed, and its route is kept", []onMachine{{"worker2", "kill -9 $(cat /run/bird/bird.pid)"}},
			[]onMachine{{"worker2", "bird -c /lab/worker2.conf -P /run/bird/bird.pid"}}, []string{"latent stale-route 10.244.2.0/24"}},
		static("a static route to worker1", "towards1", "10.244.2.0/24 10.235.2.11", "latent wrong-announcer 10.244.2.0/24"),
		static("a static route to a machine that is gone", "gone", "10.244.2.0/24 10.235.2.78", "active unannounced 10.244.2.0/24", "latent absent-node 10.244.2.0/24"),
		static("a static route that discards", "hole", "10.244.2.0/24 blackhole", "active unannounced 10.244.2.0/24"),
		{"the Service is withdrawn", []onMachine{{"worker1", "birdc disable service"}}, []onMachine{{"worker1", "birdc enable service"}}, []string{"active no-route 192.0.2.1/32"}},
		{"the node without an endpoint announces it", []onMachine{{"worker1", "birdc disable service"}, {"worker2", "birdc enable service"}},
			[]onMachine{{"worker2", "birdc disable service"}, {"worker1", "birdc enable service"}}, []string{"active no-local-endpoint 192.0.2.1/32"}},
		move("the other node answers by ARP", "10.235.2.128", "worker1", "worker2", "active stale-neighbour 10.235.2.128/32"),
		move("another machine answers by ARP", "10.235.2.200", "worker2", "OTHER", "active two-speakers 10.235.2.200/32"),
	}
}

// A healthy cluster behind FRR or BIRD has no finding, and each fault in the routers' tables leads to one finding. Each
// router is a process in a network namespace, and is read as an audit reads it.
func TestRouterFaults(t *testing.T) {
	ctx := t.Context() // the context of a subtest would end before the fault is undone
	startMachines(t)
	objects := string(must.Get(os.ReadFile(filepath.Join("testdata", "falsealarms", "layer2", "objects.yaml")))(t))
	objects = strings.NewReplacer("10.4.94.", faultsSubnet, `ago "5s"`, `ago "-1h"`).Replace(objects) // no Lease expires
	objects = strings.Replace(objects, "externalTrafficPolicy: Cluster", "externalTrafficPolicy: Local", 1)
	for kind, other := range map[string]string{"frr": "bird", "bird": "frr"} {
		declared := bgprouter.Declared{Name: kind, Kind: bgprouter.Kind(kind), Command: []string{"docker", "exec", containerOf(kind)}}
		access := Access{Config: configOf(t, at(t, objects, time.Now()), 0), Routing: must.Get(bgprouter.Readers([]bgprouter.Declared{declared}, nil))(t),
			unreachable: errNotReached}
		collector := must.Get(snapshot.Open(ctx, access, sources(scope{routers: true})...))(t)
		t.Cleanup(func() { collector.Close() })
		collector.Allow(time.Minute)
		named := strings.NewReplacer("TOR", kind, "OTHER", other)
		run := func(all []onMachine) {
			for _, on := range all {
				inMachine(t, named.Replace(on.machine), on.command)
			}
		}
		// becomes waits until the cluster has these findings. Before each read the router resolves addresses anew.
		becomes := func(t *testing.T, want ...string) {
			t.Helper()
			what := fmt.Sprintf("%s to have the findings %q", kind, want)
			must.NoError(t, await.Until(ctx, what, 100*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
				inMachine(t, kind, "for a in 11 12 128 200 "+machines[other]+"; do ip neigh flush to "+faultsSubnet+"$a; echo >/dev/udp/"+faultsSubnet+"$a/9; done")
				r, err := Judge([]snapshot.Snapshot{collector.Collect(ctx), collector.Collect(ctx)})
				if err != nil {
					return false, "", err
				}
				got := slices.Sorted(slices.Values(found(r.Findings)))
				return cmp.Equal(got, slices.Sorted(slices.Values(want))) && !r.Open(), fmt.Sprintf("%q, once %v, unread %v, not judged %v", got, r.Once, r.Unread, r.NotJudged), nil
			}))
		}
		t.Run(kind, func(t *testing.T) { becomes(t) })
		for _, f := range routerFaults(kind) {
			t.Run(kind+"/"+f.name, func(t *testing.T) {
				t.Cleanup(func() {
					run(f.undo)
					becomes(t)
				})
				run(f.do)
				becomes(t, f.findings...)
			})
		}
	}
}

func containerOf(machine string) string { return "relapse-test-faults-" + machine }

func inMachine(t *testing.T, machine, command string) {
	t.Helper()
	docker(t, "exec", containerOf(machine), "bash", "-c", command)
}

// docker does not end with the test's context: a fault is undone after that.
func docker(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
		t.Fatalf("docker %q: %v: %s", args, err, out)
	}
}

// startMachines runs nodes and routers in containers on an internal network.
func startMachines(t *testing.T) {
	t.Helper()
	engine := must.Get(client.New(client.FromEnv))(t)
	t.Cleanup(func() { engine.Close() })
	catalogue, loaded := must.Get(images.Open("../.."))(t), map[string]string{}
	for kind, ref := range map[string]string{"frr": "relapse.dev/frr:10.3", "bird": "relapse.dev/bird:2.17"} {
		must.Get(catalogue.Build(t.Context(), []string{ref}, func(images.Event) {}))(t)
		loaded[kind] = must.Get(catalogue.LoadDocker(t.Context(), engine, ref))(t)
	}
	remove := func() { // also containers of an earlier test
		for machine := range machines {
			_ = exec.Command("docker", "rm", "--force", "--volumes", containerOf(machine)).Run()
		}
		_ = exec.Command("docker", "network", "rm", faultsNetwork).Run()
	}
	remove()
	t.Cleanup(remove)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"frr.conf": frrConf, "bird.conf": birdConf,
		"worker1.conf": strings.NewReplacer("$i", "1", "$o", "2", "$service", "").Replace(nodeConf),
		"worker2.conf": strings.NewReplacer("$i", "2", "$o", "1", "$service", "disabled;").Replace(nodeConf),
	} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	docker(t, "network", "create", "--internal", "--subnet", faultsSubnet+"0/24", faultsNetwork)
	for machine, last := range machines {
		image, start := loaded["bird"], "mkdir -p /run/bird; bird -c /lab/"+machine+".conf -P /run/bird/bird.pid; exec sleep infinity"
		if machine == "frr" {
			image, start = loaded["frr"], frrStart
		}
		docker(t, "run", "--detach", "--init", "--name", containerOf(machine), "--network", faultsNetwork, "--ip", faultsSubnet+last, "--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN",
			"--volume", dir+":/lab", "--entrypoint", "bash", image, "-c", start)
	}
	inMachine(t, "worker1", "ip address add 10.235.2.128/32 dev eth0")
	inMachine(t, "worker2", "ip address add 10.235.2.200/32 dev eth0")
}
