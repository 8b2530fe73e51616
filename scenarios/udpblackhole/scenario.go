package udpblackhole

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const (
	affectedVersion = kubeadm.KubernetesVersion
	fixedVersion    = "1.37.0"
	earlierVersion  = "1.31.14"

	affectedIPTables = "iptables-" + affectedVersion
	affectedNFTables = "nftables-" + affectedVersion
	fixedIPTables    = "iptables-" + fixedVersion
	fixedNFTables    = "nftables-" + fixedVersion
	earlierIPTables  = "iptables-" + earlierVersion
)

const master, worker = topology.Master, "worker"

var (
	nodes = []string{master, worker}
	rack  = topology.NewRack(67)
)

// lab is the cluster that Record draws. Senders are on the node of the endpoint and on another
// one. The ToR has static routes to the pods of both nodes.
var lab = rack.Two("udp-blackhole")

// Scenario is udp-blackhole.
var Scenario = framework.Scenario{
	Incident:  Record,
	Owner:     framework.Maintainers,
	Labels:    []framework.Label{framework.Services},
	Slow:      true,
	Foreign:   true,
	SecondLab: netip.MustParsePrefix("10.208.64.0/20"),
	Budget:    framework.Budget{Whole: 250 * time.Second, Lab: 45 * time.Second, Detect: 5 * time.Second}, // 100 s a pair
	Topology:  lab,
	Variants: []framework.Variant{
		variant(framework.Affected, affectedVersion, kubeadm.IPTables),
		variant(framework.Affected, affectedVersion, kubeadm.NFTables),
		variant(framework.Fixed, fixedVersion, kubeadm.NFTables),
		variant(framework.Fixed, fixedVersion, kubeadm.IPTables),
		variant(framework.Fixed, earlierVersion, kubeadm.IPTables),
	},
	Tested: []framework.Tested{{Name: "kube-proxy", Default: affectedVersion, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["kube-proxy"], kubeadm.IPTables)
	},
}

func variant(role framework.Role, version, mode string) framework.Variant {
	v := framework.Variant{
		Name: mode + "-" + version, Role: role, Form: framework.Whole,
		Components: map[string]string{"kube-proxy": version},
		Images:     []string{kubeadm.ProxyImage(version), workload.ProbeImage},
		Script:     func() framework.Script { return (&incident{version: version, mode: mode}).script(role) },
	}
	if role == framework.Affected {
		v.Images = append(v.Images, kubeadm.ProxyImage(fixedVersion))
	}
	return v
}

type incident struct {
	version, mode string
	// gone is the address of the Service's last endpoint.
	gone netip.Addr
}

// The Services: statsd, which loses its endpoint, and one that keeps its own, as CoreDNS's does.
const servicePort = 8125

var (
	statsdIP    = netip.AddrPortFrom(netip.MustParseAddr("10.96.0.80"), servicePort)
	neighbourIP = netip.AddrPortFrom(netip.MustParseAddr("10.96.0.81"), servicePort)
)

// statsd is the pod behind the Service, and heir the one that is given its address.
var (
	statsd = framework.ProbePod{Name: "statsd", Node: worker}
	heir   = framework.ProbePod{Name: "heir", Node: worker}
)

var (
	senders   = framework.PodsOn(nodes...)
	service   = framework.ServerAt("statsd", statsdIP)
	neighbour = framework.ServerAt("neighbour", neighbourIP)
)

// steady are the senders that never pause, and anew the senders that use another port for each
// packet. Refusals are answers to both: only packets that vanish are lost.
var steady, anew = fromEach(probe.UDPConnected), fromEach(probe.UDPFlow)

func fromEach(protocol probe.Protocol) []probe.Probe {
	return each.Of(senders, func(s framework.Endpoint) probe.Probe {
		p := s.Over(protocol, service)
		p.RefusalAnswers = true
		return p
	})
}

const (
	// minOutage is longer than what a packet takes that finds kube-proxy between its rules and
	// its clean-up, and than the few packets that get the port of a connection of before.
	minOutage = 500 * time.Millisecond
	// within bounds the start of kube-proxy and its first sync on a node, and a remedy.
	within = time.Minute
)

func (i *incident) proxy(version string) kubeadm.Proxy {
	return kubeadm.NewProxy(version, i.mode, rack.Pods, nodes...)
}

func (i *incident) script(role framework.Role) framework.Script {
	s := framework.Script{
		Install: i.proxy(i.version).Installed(within,
			framework.InOrder(clean, workload.Probes(append(workload.OnEach(nodes...), statsd)...)),
			statsdTo(statsd.Name), workload.ClusterIP("neighbour", corev1.ProtocolUDP, neighbourIP, master),
		),
		Endpoints: append(senders, service, neighbour),
		Probes:    slices.Concat(senders[0].Both(senders[1]), steady, anew, []probe.Probe{senders[1].Over(probe.UDPConnected, neighbour)}),
		Detectors: []detect.Detector{detect.GoneEndpoints{}},
		Fault:     i.fault(),
		Impacted:  steady, MinOutage: minOutage,
		Observe: 8 * time.Second,
	}
	if role == framework.Fixed {
		return s
	}
	for _, n := range nodes {
		s.Expected = append(s.Expected, framework.Finding{
			Detector: detect.GoneEndpoints{}.Name(), Kind: detect.GoneEndpoint, State: detect.Active,
			Object: detect.Named(fmt.Sprintf("default/statsd:%d/UDP", servicePort)), Owner: n,
		})
	}
	s.Aftermath = []framework.Check{
		{ID: "heir", Name: "a pod that is given the address gets the packets", Holds: i.heirGetsPackets},
		{ID: "heir-named", Name: "the detector names the pod that has the address", Holds: heirIsNamed, Bound: 15 * time.Second,
			AsksDetectors: true},
		{ID: "vanish-again", Name: "without that pod the packets vanish again", Holds: vanishAgain},
	}
	s.Remedies = i.remedies()
	return s
}

func (i *incident) remedies() []framework.Remedy {
	return []framework.Remedy{
		{ID: "restart", Name: "restart kube-proxy on every node", Apply: i.proxy(i.version).Rolled(within), Watch: 5 * time.Second},
		{
			ID: "forget", Name: "delete the Service's entries of connection tracking on every node", Helps: true, Bound: within, Apply: forget,
			Undo: framework.InOrder(serve, i.end),
		},
		{ID: "endpoints", Name: "endpoints again", Helps: true, Bound: within, Apply: serve, Undo: i.end},
		{ID: "fixed-version", Name: "kube-proxy " + fixedVersion, Helps: true, Bound: 2 * within, Apply: i.proxy(fixedVersion).Rolled(within)},
	}
}

// clean makes a node forget connections of before. ICMP errors are not limited in their rate.
var clean = labaccess.OnNodes(nodes, func(ctx context.Context, n *kindlab.Node) error {
	if err := workload.Forget(ctx, n, "-p", "udp", "--orig-port-dst", strconv.Itoa(servicePort)); err != nil {
		return err
	}
	_, err := n.Exec(ctx, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0")
	return err
})

func statsdTo(pod string) framework.Action {
	return workload.ClusterIP("statsd", corev1.ProtocolUDP, statsdIP, pod)
}

// serve gives the Service its endpoint again, in a pod with another address.
var serve = framework.InOrder(workload.Added(statsd), statsdTo(statsd.Name))

// ofService are the arguments of conntrack(8) that choose the connections to the Service.
var ofService = fmt.Sprintf("-p udp --orig-dst %s --orig-port-dst %d", statsdIP.Addr(), statsdIP.Port())

var forget = labaccess.OnNodes(nodes, func(ctx context.Context, n *kindlab.Node) error {
	return workload.Forget(ctx, n, strings.Fields(ofService)...)
})

func (i *incident) fault() framework.Fault {
	return framework.Fault{
		Name:   "Service statsd loses its last endpoint",
		Inject: i.end,
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			pods, err := workload.ProbePods(statsd).List(ctx, labaccess.Cluster(r))
			if err != nil || len(pods) > 0 {
				return false, fmt.Sprintf("%d pods behind Service statsd", len(pods)), err
			}
			_, there, err := i.received(ctx, r)
			return !there, fmt.Sprintf("a pod has %s: %t", i.gone, there), err
		},
		Undo: serve, Replaced: true,
	}
}

// end takes the pod out of the Service, and ends it when each node refuses new senders. Until
// then connection tracking has to have the packets of all senders go to the pod.
func (i *incident) end(ctx context.Context, r *framework.Run) error {
	address, err := workload.ProbeIP(ctx, labaccess.Cluster(r), statsd)
	if err != nil {
		return err
	}
	i.gone = address
	err = labaccess.Lab(r).EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error {
		return await.Until(ctx, "connections of "+n.Name()+" to "+address.String(), 100*time.Millisecond, within,
			func(ctx context.Context) (bool, string, error) {
				found, err := n.Exec(ctx, append([]string{"conntrack", "-L", "--reply-src", address.String()}, strings.Fields(ofService)...)...)
				return strings.TrimSpace(found) != "", "none", err
			})
	})
	if err != nil {
		return err
	}
	before := refused(r)
	if err := statsdTo("none")(ctx, r); err != nil {
		return err
	}
	err = await.Until(ctx, "each node to refuse new senders", 50*time.Millisecond, within, func(context.Context) (bool, string, error) {
		now := refused(r)
		none := slices.ContainsFunc(anew, func(p probe.Probe) bool { return now[p.Name] <= before[p.Name] })
		return !none, fmt.Sprintf("refused packets: %v, then %v", before, now), nil
	})
	if err != nil {
		return err
	}
	return workload.ProbePods(statsd).Delete(ctx, labaccess.Cluster(r))
}

func refused(r *framework.Run) map[string]int {
	counts := map[string]int{}
	for _, t := range r.Timelines() {
		counts[t.Probe.Name] = t.Errors["ECONNREFUSED"]
	}
	return counts
}

// reserve makes host-local give out the address after this one next. It is where the plugin
// keeps the last one that it has given out.
const reserve = "echo -n %s >/var/lib/cni/networks/relapse/last_reserved_ip.0"

// receivedBy prints how many UDP packets the pod with an address has received, by its kernel,
// and nothing if no pod has the address.
const receivedBy = `for n in /run/netns/*; do nsenter --net=$n ip -4 -o addr | grep -qF ' %s/' && ` +
	`nsenter --net=$n cat /proc/net/snmp; done | awk '/^Udp: [0-9]/ {print $2}'`

// received is how many UDP packets the pod with the gone pod's address has received; false if no
// pod has the address.
func (i *incident) received(ctx context.Context, r *framework.Run) (packets int, there bool, err error) {
	text, err := labaccess.Lab(r).Node(worker).Exec(ctx, "sh", "-c", fmt.Sprintf(receivedBy, i.gone))
	if text = strings.TrimSpace(text); err != nil || text == "" {
		return 0, false, err
	}
	packets, err = strconv.Atoi(text)
	return packets, true, err
}

// heirGetsPackets gives the address to another pod, which no Service selects, and waits until
// it has received packets.
func (i *incident) heirGetsPackets(ctx context.Context, r *framework.Run) (bool, string, error) {
	if _, err := labaccess.Lab(r).Node(worker).Exec(ctx, "sh", "-c", fmt.Sprintf(reserve, i.gone.Prev())); err != nil {
		return false, "", err
	}
	if err := workload.Added(heir)(ctx, r); err != nil {
		return false, "", err
	}
	address, err := workload.ProbeIP(ctx, labaccess.Cluster(r), heir)
	if err != nil || address != i.gone {
		return false, fmt.Sprintf("the new pod has %s, not %s", address, i.gone), err
	}
	const enough = 20 // of the packets that two senders send in a second
	err = await.Until(ctx, "the new pod to get the packets of the Service", 200*time.Millisecond, 15*time.Second,
		func(ctx context.Context) (bool, string, error) {
			packets, _, err := i.received(ctx, r)
			saw := fmt.Sprintf("pod %s has received %d packets", workload.ProbeKey(heir), packets)
			if packets < enough {
				return false, saw, err
			}
			r.Note(saw)
			return true, "", nil
		})
	if err != nil {
		return false, err.Error(), nil
	}
	return true, "", nil
}

func heirIsNamed(_ context.Context, r *framework.Run) (bool, string, error) {
	found := r.Findings()
	return slices.ContainsFunc(found, func(f detect.Finding) bool {
		return f.State == detect.Active && slices.Contains(f.Pods, workload.ProbeKey(heir).String())
	}), framework.DescribeFindings(found), nil
}

// vanishAgain removes the pod with the address, and waits until the packets of each steady
// sender vanish as before.
func vanishAgain(ctx context.Context, r *framework.Run) (bool, string, error) {
	if err := workload.ProbePods(heir).Delete(ctx, labaccess.Cluster(r)); err != nil {
		return false, "", err
	}
	removed := time.Now()
	err := await.Until(ctx, "the packets to vanish again", 100*time.Millisecond, 15*time.Second, func(context.Context) (bool, string, error) {
		for _, t := range r.Timelines() {
			isSteady := slices.ContainsFunc(steady, func(p probe.Probe) bool { return p.Name == t.Probe.Name })
			if _, out := t.FirstOutage(removed, minOutage); isSteady && !out {
				return false, t.String(), nil
			}
		}
		return true, "", nil
	})
	return err == nil, fmt.Sprint(err), nil
}
