package udpblackhole

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// fault takes the last endpoint of the Service away.
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
	before := refusals(r.Timelines(), anew)
	if err := declare("statsd", statsdIP, "none")(ctx, r); err != nil {
		return err
	}
	err = await.Until(ctx, "each node to refuse new senders", 50*time.Millisecond, within, func(context.Context) (bool, string, error) {
		now := refusals(r.Timelines(), anew)
		return moreOfEach(now, before), fmt.Sprintf("refused packets: %d, then %d", before, now), nil
	})
	if err != nil {
		return err
	}
	return workload.ProbePods(statsd).Delete(ctx, labaccess.Cluster(r))
}

// refusals are how many packets of each of some probes were refused.
func refusals(timelines []probe.Timeline, of []probe.Probe) []int {
	counts := make([]int, len(of))
	for i, p := range of {
		for _, t := range timelines {
			if t.Probe.Name == p.Name {
				counts[i] = t.Errors["ECONNREFUSED"]
			}
		}
	}
	return counts
}

func moreOfEach(now, before []int) bool {
	for n := range now {
		if now[n] <= before[n] {
			return false
		}
	}
	return true
}

// reserve makes host-local give out the address after this one next. It is where the plugin
// keeps the last one that it has given out.
const reserve = "echo -n %s >/var/lib/cni/networks/relapse/last_reserved_ip.0"

// receivedBy prints how many UDP packets the pod with an address has received, by its kernel,
// and nothing if no pod has the address.
const receivedBy = `for n in /run/netns/*; do nsenter --net=$n ip -4 -o addr | grep -qF ' %s/' && nsenter --net=$n cat /proc/net/snmp; done | awk '/^Udp: [0-9]/ {print $2}'`

// received is how many UDP packets the pod has received that has the address of the pod that
// is gone, if there is one.
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
	c, on := labaccess.Cluster(r), labaccess.Lab(r).Node(worker)
	if _, err := on.Exec(ctx, "sh", "-c", fmt.Sprintf(reserve, i.gone.Prev())); err != nil {
		return false, "", err
	}
	if err := workload.AddProbes(ctx, c, []framework.ProbePod{heir}); err != nil {
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

// heirIsNamed asserts that the detector names the pod that has the address now.
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
