// Package kubeproxy runs kube-proxies of Kubernetes 1.11 to 1.13 on nodes of a lab's cluster, each
// with a version and mode of its own, and reads what they report about themselves.
package kubeproxy

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"text/template"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

//go:embed kube-proxy.yaml
var manifestYAML string

var manifestTemplate = template.Must(template.New("kube-proxy").Parse(manifestYAML))

// Mode is the value of kube-proxy's --proxy-mode.
type Mode string

const (
	IPVS     Mode = "ipvs"
	IPTables Mode = "iptables"
)

// Image is the vendor's name of kube-proxy's image of a version, such as 1.13.0.
func Image(version string) string { return "k8s.gcr.io/kube-proxy:v" + version }

func (p Proxy) daemonSet() workload.DaemonSet {
	return workload.SystemDaemonSet("kube-proxy-" + p.Node)
}

const (
	// startsWithin bounds the start of a pod: a guest without hardware support took over two minutes at a load of 24.
	startsWithin = 5 * time.Minute
	// syncsWithin bounds the first sync with Services: it writes every rule and, on such a guest, takes a minute.
	syncsWithin = 5 * time.Minute
)

// Proxy is kube-proxy in one version and mode, on one node.
type Proxy struct {
	Version string
	Mode    Mode
	// Node is the node that it runs on.
	Node    string
	PodCIDR netip.Prefix
	// Watched is the cluster IP of the Service whose entries in the graceful-termination list State counts.
	Watched netip.Addr
}

// Apply is the action that runs this version and mode in place of the running pod, and waits for its first sync.
func (p Proxy) Apply(ctx context.Context, r *framework.Run) error {
	cluster, node := labaccess.Cluster(r), labaccess.Lab(r).Node(p.Node)
	text, err := workload.Render(manifestTemplate, map[string]any{
		"Name": p.daemonSet().Name, "Node": p.Node, "Image": Image(p.Version), "Mode": p.Mode,
		"PodCIDR": p.PodCIDR, "APIServer": cluster.APIServer(),
	})
	if err != nil {
		return err
	}
	if p.Mode == IPVS && semver.Compare("v"+p.Version, "v1.13.0") < 0 {
		if _, err := node.Exec(ctx, "sh", "-c", renamed); err != nil {
			return fmt.Errorf("listing nf_conntrack_ipv4 as a kernel module on %s, which kube-proxy %s requires: %w", p.Node, p.Version, err)
		}
	}
	if _, err := node.Exec(ctx, "sh", "-c", markDrop); err != nil {
		return fmt.Errorf("making the chain KUBE-MARK-DROP on %s: %w", p.Node, err)
	}
	if err := workload.Apply(ctx, cluster, text); err != nil {
		return err
	}
	return p.Restart(ctx, r)
}

// markDrop makes a chain of kubelets up to 1.27: kube-proxy of that age jumps to it in mode IPVS, and fails without it.
const markDrop = `iptables -w -t nat -N KUBE-MARK-DROP 2>/dev/null || exit 0
iptables -w -t nat -A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000`

// renamed lists nf_conntrack_ipv4 among the modules that are built into the node's kernel. It is in nf_conntrack from
// Linux 4.19 on, which kube-proxy up to 1.12 does not know: it falls back to iptables (kubernetes#70304).
const renamed = `f=/lib/modules/$(uname -r)/modules.builtin
grep -qs nf_conntrack_ipv4 "$f" || echo kernel/net/ipv4/netfilter/nf_conntrack_ipv4.ko >>"$f"`

// Delete is the action that removes kube-proxy from its node. What it wrote to the node's kernel stays.
func (p Proxy) Delete(ctx context.Context, r *framework.Run) error {
	return p.daemonSet().Delete(ctx, labaccess.Cluster(r))
}

// Restart is the action that replaces the pod by one of the current DaemonSet, and waits for its first sync.
func (p Proxy) Restart(ctx context.Context, r *framework.Run) error {
	if err := p.daemonSet().Restart(ctx, labaccess.Cluster(r), []string{p.Node}, startsWithin); err != nil {
		return err
	}
	return p.synced(ctx, labaccess.Lab(r))
}

func (p Proxy) synced(ctx context.Context, lab *kindlab.Lab) error {
	return await.Until(ctx, "the first sync of kube-proxy in mode "+string(p.Mode), time.Second, syncsWithin,
		func(ctx context.Context) (bool, string, error) {
			l, err := p.State(ctx, lab)
			if err != nil {
				return false, "", err
			}
			// The very first sync ends at once: it has no Services yet.
			return l.Mode == p.Mode && l.Syncs > 1, fmt.Sprintf("%d syncs in mode %q", l.Syncs, l.Mode), nil
		})
}

// State is what kube-proxy reports at one moment.
type State struct {
	At   time.Time
	Mode Mode
	// Syncs is how many syncs it has finished since it was started.
	Syncs int
	// Waiting are the numbers of its goroutines that wait for the kernel's answer about IPVS.
	Waiting []int
	// Walked counts entries of the Service's graceful-termination list in the log: when added, and with each tick.
	Walked int
}

// String is the state in one line, without the time.
func (l State) String() string {
	return fmt.Sprintf("%d syncs finished, %d log lines about endpoints to be deleted, %d goroutines wait for IPVS", l.Syncs, l.Walked,
		len(l.Waiting))
}

// syncMetric counts finished syncs; it is 1.13's name.
const syncMetric = "kubeproxy_sync_proxy_rules_latency_microseconds_count"

// pollWithin bounds a poll: on a busy machine one took 6 s.
const pollWithin = 30 * time.Second

// State reads the state of kube-proxy. If it does not answer, or a part of the answer is missing, that is an error.
func (p Proxy) State(ctx context.Context, lab *kindlab.Lab) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	said, err := p.query().Ask(ctx, lab.Node(p.Node))
	if err != nil {
		return State{}, err
	}
	return stateOf(said, time.Now())
}

func (p Proxy) query() snapshot.ProxyQuery {
	return snapshot.ProxyQuery{
		Counters: []string{syncMetric}, Goroutines: true, LogLines: fmt.Sprintf("Trying to delete rs: %s", p.Watched),
	}
}

// stateOf makes a State of answers. Missing metrics must not count as no syncs, nor a missing dump as no goroutines.
func stateOf(said snapshot.Proxy, at time.Time) (State, error) {
	switch {
	case said.Mode == "":
		return State{}, errors.New("asking kube-proxy for its mode: it does not answer")
	case said.Counters == nil:
		return State{}, errors.New("asking kube-proxy for its metrics: it does not answer")
	case !said.Dumped:
		return State{}, errors.New("asking kube-proxy for its goroutines: it does not answer; does it run with --profiling?")
	}
	// The counter appears with the first sync.
	return State{
		At: at, Mode: Mode(said.Mode), Syncs: int(said.Counters[syncMetric]), Walked: said.LogLines,
		Waiting: each.Of(said.Goroutines, func(g snapshot.Goroutine) int { return g.ID }),
	}, nil
}

// RunsIn asks kube-proxy which mode it runs in: it falls back to another if it cannot run in the configured one.
func (p Proxy) RunsIn(ctx context.Context, lab *kindlab.Lab) (Mode, error) {
	mode, err := lab.Node(p.Node).Exec(ctx, "curl", "-sS", "-m", "5", "http://127.0.0.1:10249/proxyMode")
	return Mode(mode), err
}

const (
	// pollsHung is how many polls in a row must show the same goroutines waiting for IPVS,
	// and no sync finished, before kube-proxy counts as hung. Two goroutines of a healthy
	// kube-proxy may both be in a call at one poll, and again at the next.
	pollsHung = 3
	// FrozenFor is how long a kube-proxy may go without finishing a sync before it counts as
	// stopped, regardless of its goroutines. It should sync every five seconds; the slowest sync
	// that was seen on a busy machine, without hardware support for guests, took 38 s.
	FrozenFor = 2 * time.Minute
)

// Hang reports after each poll whether kube-proxy hangs.
type Hang struct {
	Last State

	alike int       // polls in a row, up to the last, with the same goroutines waiting and no sync
	since time.Time // when the last poll's count of syncs was seen first
}

// See takes the state of one more poll, and reports whether kube-proxy hangs.
func (h *Hang) See(l State) bool {
	synced := h.since.IsZero() || l.Syncs != h.Last.Syncs
	if synced {
		h.since = l.At
	}
	if synced || !slices.Equal(l.Waiting, h.Last.Waiting) {
		h.alike = 0
	}
	h.alike++
	h.Last = l
	return len(l.Waiting) > 1 && h.alike >= pollsHung || l.At.Sub(h.since) >= FrozenFor
}
