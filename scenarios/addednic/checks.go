package addednic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// lookedAgain asserts that calico-node -monitor-addresses has looked for the node's
// address since the card was plugged in: only then has it ignored the card.
func (s *story) lookedAgain(ctx context.Context, r *framework.Run) (bool, string, error) {
	last, err := calico.LastLook(ctx, labaccess.Lab(r).Node(coreDNSNode))
	return last.After(s.plugged), fmt.Sprintf("the card was plugged in at %s, Calico last looked for its address at %s",
		s.plugged.Format(time.TimeOnly), last.Format(time.TimeOnly)), err
}

// notReady asserts that a restarted calico-node is up, and not ready because its sessions
// are down, by its own message and by kubelet's status.
func notReady(ctx context.Context, r *framework.Run) (bool, string, error) {
	why, err := calico.NotReady(ctx, labaccess.Lab(r).Node(coreDNSNode))
	if err != nil {
		return false, "", err
	}
	ready, err := calico.IsReady(ctx, labaccess.Cluster(r), coreDNSNode)
	if err != nil {
		return false, "", err
	}
	return strings.Contains(why, "BGP not established") && !ready, fmt.Sprintf("it says %q; its pod is ready: %v", why, ready), nil
}

// note notes calico-node's pods and their restarts, and notRestarted asserts that they are the same since.
func (s *story) note(ctx context.Context, r *framework.Run) (err error) {
	s.agents, err = calico.Restarts(ctx, labaccess.Cluster(r))
	return err
}

func (s *story) notRestarted(ctx context.Context, r *framework.Run) (bool, string, error) {
	now, err := calico.Restarts(ctx, labaccess.Cluster(r))
	return maps.Equal(now, s.agents), fmt.Sprintf("before: %v, now: %v", s.agents, now), err
}

func asserted(holds framework.Condition) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		met, saw, err := holds(ctx, r)
		if err == nil && !met {
			err = errors.New(saw)
		}
		return err
	}
}

func birdRuns(ctx context.Context, r *framework.Run) error {
	began := time.Now()
	return await.Until(ctx, "BIRD to run on every node", 100*time.Millisecond, 30*time.Second,
		func(context.Context) (bool, string, error) {
			var without framework.Mismatches
			at := r.Snapshot()
			if !at.Time.After(began) || len(at.NodeNetworks) == 0 {
				return false, "no snapshot of the nodes since", nil
			}
			for _, n := range at.NodeNetworks {
				if len(calico.Sessions(n)) == 0 {
					without.Addf("no neighbour on %s", n.Node)
				}
			}
			return without.Result()
		})
}

// addressing are the sources that hold Calico's addresses and BIRD's sessions.
var addressing = []snapshot.Source{snapshot.Nodes, snapshot.NodeNetworks}

// addressesAndSessions asserts that Calico has the declared addresses, and that BIRD has an established
// session with each of them. addressMoved asserts that Calico has the card's address, and that only the
// sessions of its node are down.
var (
	addressesAndSessions = framework.Check{
		ID: "addresses-and-sessions", Name: "Calico's addresses are the Nodes' InternalIPs, and every session is up",
		Reads: addressing, Holds: addressed(""),
	}
	addressMoved = framework.Check{
		ID: "address-moved", Name: "Calico uses the card's address for " + coreDNSNode + ", and no session with it is up",
		Reads: addressing, Holds: addressed(coreDNSNode), Bound: 5 * time.Second,
	}
)

// addressed asserts the addresses and sessions of the nodes. The node moved, if any, has the card's address.
func addressed(moved string) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		at := r.Snapshot()
		var wrong framework.Mismatches
		sessions := 0
		for _, n := range at.NodeNetworks {
			want := r.Address(n.Node)
			if n.Node == moved {
				want = card.Address.Addr()
			}
			if got := calico.Address(at, n.Node); got != want {
				wrong.Addf("%s has %s, not %s", n.Node, got, want)
			}
			for _, p := range calico.Sessions(n) {
				down := n.Node == moved || p.Neighbor == card.Address.Addr()
				if up := p.BGPState == snapshot.Established; up == down {
					wrong.Addf("on %s, %s is %s", n.Node, p.Name, p.BGPState)
				}
				sessions++
			}
		}
		nodes := len(lab.Clusters[0].Nodes)
		if all := nodes * (nodes - 1); sessions != all {
			wrong.Addf("there are %d ends of BGP sessions, not %d", sessions, all)
		}
		return wrong.Result()
	}
}

func finding(kind string, state detect.State, words ...string) framework.Finding {
	return framework.Finding{
		Detector: detect.NodeAddress{}.Name(), Kind: kind, State: state, Object: detect.Named(coreDNSNode),
		Owner: coreDNSNode, Announcer: card.Address.Addr().String(), Words: words,
	}
}

const factOver = time.Second

// holds asserts a fact over a second of traffic, all of it after the symptom.
func (s *story) holds(f fact) framework.Condition {
	loses := map[string]bool{} // all of its packets, or none, by probe
	for _, p := range f.fine {
		loses[p.Name] = false
	}
	for _, p := range f.lost {
		loses[p.Name] = true
	}
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		if s.reached.IsZero() {
			s.reached = time.Now()
		}
		var wrong framework.Mismatches
		missing := maps.Clone(loses)
		for _, t := range r.Timelines() {
			delete(missing, t.Probe.Name)
			end := t.Reported.Add(-t.Probe.Timeout) // whether later packets were lost is not known yet
			c := t.Between(end.Add(-factOver), end)
			all, found := loses[t.Probe.Name]
			switch resolved := t.Probe.Protocol == probe.DNS && c.Unresolved < c.Lost; {
			case !found:
			case !end.Add(-factOver).After(s.reached):
				wrong.Addf("%s: not enough traffic since the symptom", t.Probe.Name)
			case c.Sent == 0, all && (c.Lost < c.Sent || resolved), !all && c.Received < c.Sent:
				wrong.Addf("%s: %d of %d packets lost, %d names not resolved", t.Probe.Name, c.Lost, c.Sent, c.Unresolved)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(missing)) {
			wrong.Addf("%s: no traffic", name)
		}
		return wrong.Result()
	}
}

func natRules(_ context.Context, r *framework.Run) (bool, string, error) {
	var without framework.Mismatches
	nodes := r.Snapshot().NAT
	for _, n := range nodes {
		if !calico.HidesPods(n) {
			without.Addf("%s has no rule in cali-nat-outgoing", n.Node)
		}
	}
	if len(nodes) == 0 {
		return false, "no snapshot of the nodes' rules yet", nil
	}
	return without.Result()
}

// The pods of the incident, by their roles.
var (
	redis = on("redis", master)
	// repoServer finds redis by the name of its Service.
	repoServer = on("repo-server", worker2)
	// ipsOnly uses redis's addresses and no name.
	ipsOnly = on("ips-only", worker2)
	// CoreDNS's neighbours.
	besideDNS = on("beside-dns", coreDNSNode)
	cache     = on("cache", coreDNSNode)

	hostMaster  = inHostNetwork(master)
	hostWorker1 = inHostNetwork(worker1)
	hostWorker2 = inHostNetwork(worker2)

	workloads = []framework.ProbePod{
		*redis.Pod, *repoServer.Pod, *ipsOnly.Pod, *besideDNS.Pod, *cache.Pod, *hostMaster.Pod, *hostWorker1.Pod, *hostWorker2.Pod,
	}
)

func on(name, node string) framework.Endpoint {
	return framework.PodEndpoint(framework.ProbePod{Name: name, Node: node})
}

func inHostNetwork(node string) framework.Endpoint {
	return framework.PodEndpoint(framework.ProbePod{Name: "host-" + node, Node: node, HostNetwork: true})
}

var (
	redisVIP = netip.AddrPortFrom(netip.MustParseAddr("10.96.70.1"), wire.DefaultPort)
	cacheVIP = netip.AddrPortFrom(netip.MustParseAddr("10.96.70.2"), wire.DefaultPort)
	byVIP    = framework.ServerAt("redis-vip", redisVIP)
)

func byName(from, to framework.Endpoint, service string) probe.Probe {
	p := from.Over(probe.DNS, to)
	p.Lookup = &probe.Lookup{Name: service + ".default.svc.cluster.local.", Server: kubeadm.DNSAddress}
	return p
}

// fact is one line of what was noted in production.
type fact struct {
	id, name string
	// The probes in lost lose all packets, and the probes in fine lose none.
	lost, fine []probe.Probe
}

// facts are in the order of the notes.
var facts = []fact{
	{
		id: "dns-times-out", name: "what needs DNS times out",
		lost: []probe.Probe{byName(repoServer, redis, "argocd-redis"), byName(hostWorker2, redis, "argocd-redis")},
	},
	{
		id: "no-dns-works", name: "what needs no DNS works",
		fine: []probe.Probe{
			ipsOnly.To(redis), redis.To(ipsOnly),
			ipsOnly.Over(probe.TCP, byVIP),
		},
	},
	{
		id: "same-node-works", name: "pods on CoreDNS's own node are fine",
		fine: []probe.Probe{byName(besideDNS, cache, "cache"), besideDNS.To(cache)},
	},
	{
		id: "nodes-reach-each-other", name: "nodes reach each other",
		fine: append(hostWorker1.Both(hostMaster, hostWorker2), hostMaster.Both(hostWorker2)...),
	},
	{
		id: "pods-cut-off", name: "pods on that node reach no pod elsewhere, unless it uses hostNetwork",
		lost: append(besideDNS.Both(redis, repoServer), hostWorker1.To(redis)),
		fine: []probe.Probe{besideDNS.To(hostWorker2)},
	},
}

// probes are all probes of the facts, and the probes that lose packets.
func probes() (all, lost []probe.Probe) {
	for _, f := range facts {
		all, lost = append(append(all, f.lost...), f.fine...), append(lost, f.lost...)
	}
	return all, lost
}

func ends() []framework.Endpoint {
	return append([]framework.Endpoint{byVIP}, each.Of(workloads, framework.PodEndpoint)...)
}
