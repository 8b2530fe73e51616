package masqueradedrift

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// eachNode returns what a command prints on each node, by node, and keeps it as
// evidence under this name and the node's.
func eachNode(ctx context.Context, r *framework.Run, evidence string, command ...string) (map[string]string, error) {
	printed := map[string]string{}
	for _, n := range nodes {
		text, err := labaccess.Lab(r).Node(n).Exec(ctx, command...)
		if err != nil {
			return nil, fmt.Errorf("running %s on %s: %w", command[0], n, err)
		}
		r.Evidence(evidence+"-"+n, text)
		printed[n] = text
	}
	return printed, nil
}

// masquerading asserts whether the vendor's rule is in each node's nat
// table, with the node's range and the native CIDR. The tables are evidence.
func masquerading(want bool) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		saved, err := eachNode(ctx, r, "iptables-save", "iptables-save")
		if err != nil {
			return false, "", err
		}
		var wrong framework.Mismatches
		for _, n := range nodes {
			rules, err := snapshot.ParseRules(saved[n], snapshot.NATTable)
			if err != nil {
				return false, "", err
			}
			if rule, there := cilium.Masquerade(rules, rangeOf[n], nativeCIDR); there != want {
				wrong.Addf("%s masquerades: %v %s", n, there, rule.Text)
			}
		}
		return wrong.Result()
	}
}

// masqueradingEvidence keeps the nodes' tables and connections.
func masqueradingEvidence(ctx context.Context, r *framework.Run, when string) error {
	if _, err := eachNode(ctx, r, "iptables-save-"+when, "iptables-save"); err != nil {
		return err
	}
	_, err := eachNode(ctx, r, "conntrack-"+when, "conntrack", "-L")
	return err
}

// nodeHeaders are what the vendor's code has written for each node's BPF
// programs, by node. They are evidence.
func nodeHeaders(ctx context.Context, r *framework.Run) (map[string]string, error) {
	return eachNode(ctx, r, "node_config", "cat", cilium.NodeHeader)
}

// configuredToMasquerade asserts that these headers ask for BPF NodePort in plain DSR
// mode, and for masquerading or not.
func configuredToMasquerade(want bool) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		headers, err := nodeHeaders(ctx, r)
		if err != nil {
			return false, "", err
		}
		var wrong framework.Mismatches
		for _, n := range nodes {
			for _, define := range notAsked(headers[n], want) {
				wrong.Addf("%s: %s", n, define)
			}
		}
		return wrong.Result()
	}
}

// notAsked lists the defines of a node's header that are not as the incident's
// ConfigMap asks for, with masquerading or without.
func notAsked(header string, masquerade bool) []string {
	var wrong []string
	for define, want := range map[string]bool{"ENABLE_NODEPORT": true, "ENABLE_DSR": true, "ENABLE_DSR_HYBRID": false, "ENABLE_MASQUERADE": masquerade} {
		if got := cilium.Defines(header, define); got != want {
			wrong = append(wrong, fmt.Sprintf("%s is defined: %v", define, got))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// podAddresses is the source of the probe pods' own addresses.
var podAddresses = []snapshot.Source{snapshot.Pods}

// seenAs asserts that the far endpoints of some probes have seen no other address than
// that of the pod that the probe comes from. A probe that did not arrive is wrong, too.
func seenAs(r *framework.Run, concerns func(probe.Probe) bool) (bool, string, error) {
	at := r.Snapshot()
	timelines := slices.DeleteFunc(slices.Clone(r.Timelines()), func(t probe.Timeline) bool {
		return !slices.Contains(nodes, t.Probe.From) || !concerns(t.Probe)
	})
	if len(timelines) == 0 {
		return false, "no such probe runs", nil
	}
	var wrong framework.Mismatches
	for _, t := range timelines {
		if len(t.Sources) == 0 {
			wrong.Addf("%s did not arrive", t.Probe.Name)
		}
		for _, s := range t.Sources {
			if s.Address != podOn(at, t.Probe.From) {
				wrong.Addf("%s is seen as %s", t.Probe.Name, s.Address)
			}
		}
	}
	return wrong.Result()
}

// podOn is the address of the probe pod on a node, by the newest snapshot.
func podOn(at snapshot.Snapshot, node string) netip.Addr {
	for _, p := range at.Pods.Items {
		if p.Name == "probe-"+node {
			return p.IP
		}
	}
	return netip.Addr{}
}

// insideIsUntouched asserts that packets of a pod to another one, or to the neighbour,
// always had the pod's address.
func insideIsUntouched(_ context.Context, r *framework.Run) (bool, string, error) {
	return seenAs(r, func(p probe.Probe) bool { return p.To == neighbourServer.Name || slices.Contains(nodes, p.To) })
}

// outsideSeesPods asserts the same of packets to the outside.
func outsideSeesPods(_ context.Context, r *framework.Run) (bool, string, error) {
	return seenAs(r, func(p probe.Probe) bool { return p.To == dbServer.Name || p.To == db.Name })
}

// appIsDenied asserts that the database denies the application at its node's address.
// It admitted it at its pod's.
func appIsDenied(_ context.Context, r *framework.Run) (bool, string, error) {
	logins := slices.DeleteFunc(slices.Clone(r.Timelines()), func(t probe.Timeline) bool { return t.Probe.To != dbServer.Name })
	if len(logins) == 0 {
		return false, "no such probe runs", nil
	}
	var wrong framework.Mismatches
	for _, t := range logins {
		denied := func(s probe.Source) bool { return s.Address == addressOf(r, t.Probe.From) && s.Denied > 0 }
		if !slices.ContainsFunc(t.Sources, denied) {
			wrong.Addf("%s: %+v", t.Probe.Name, t.Sources)
		}
	}
	return wrong.Result()
}

// flowsAreHidden asserts that the pods' UDP flows to the outside have been seen as their nodes'.
func flowsAreHidden(r *framework.Run) (bool, string, error) {
	var wrong framework.Mismatches
	for _, n := range nodes {
		isHidden := func(s probe.Source) bool { return s.Address == addressOf(r, n) }
		if !slices.ContainsFunc(r.Timelines(), func(t probe.Timeline) bool {
			return t.Probe.From == n && t.Probe.To == db.Name && slices.ContainsFunc(t.Sources, isHidden)
		}) {
			wrong.Addf("the flow from %s is not seen as %s", n, addressOf(r, n))
		}
	}
	return wrong.Result()
}

// oldFlowsAreHidden asserts that the pods' UDP flows to the outside, which
// began before the upgrade, have lost the pods' addresses: BPF programs
// translate each packet, also of flows that connection tracking knows.
func oldFlowsAreHidden(ctx context.Context, r *framework.Run) (bool, string, error) {
	if holds, saw, err := flowsAreHidden(r); !holds || err != nil {
		return false, saw, err
	}
	return true, "", masqueradingEvidence(ctx, r, "after-the-upgrade")
}

// restartedWithin bounds how long a flow takes to be seen under another address: its next packet
// makes it a new one, and the far end reports ten times a second.
const restartedWithin = 5 * time.Second

// oldFlowsKeepTheirAddress asserts that the pods' UDP flows to the outside,
// which began before the upgrade, still have the pods' addresses: the kernel
// asks the rules once for each flow. Then it makes the kernel forget them, as a reboot
// or a pause in the traffic would, and asserts that they lose the addresses.
//
// If an answer is under way when its flow is forgotten, the kernel may take that answer
// for the first packet of a new flow, from the server to the pod: the rules are not asked
// about the pod's packets then. Such a flow is forgotten again.
func oldFlowsKeepTheirAddress(ctx context.Context, r *framework.Run) (bool, string, error) {
	if holds, saw, err := seenAs(r, func(p probe.Probe) bool { return p.To == db.Name }); !holds || err != nil {
		return false, saw, err
	}
	if err := forget(ctx, r, "--proto", "udp", "--orig-dst", addressOf(r, db.Name).String()); err != nil {
		return false, "", err
	}
	var failed error // to forget flows, at last
	err := await.Until(ctx, "the flows to be seen as the nodes'", 50*time.Millisecond, restartedWithin,
		func(ctx context.Context) (bool, string, error) {
			hidden, saw, err := flowsAreHidden(r)
			if !hidden && err == nil {
				err = forgetReversed(ctx, r)
			}
			if ctx.Err() == nil {
				failed = err
			}
			return hidden, saw, err
		})
	if err != nil {
		return false, err.Error(), failed
	}
	return true, "", masqueradingEvidence(ctx, r, "after-the-upgrade")
}

// forget makes each node's kernel forget the connections of its pods that a
// filter of conntrack(8) selects.
func forget(ctx context.Context, r *framework.Run, filter ...string) error {
	return labaccess.Lab(r).EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error {
		return workload.Forget(ctx, n, append(slices.Clone(filter), "--orig-src", rangeOf[n.Name()].String())...)
	})
}

// forgetReversed makes each node's kernel forget the UDP flows that it takes
// for ones from the database's echo port to a pod, if there are any.
func forgetReversed(ctx context.Context, r *framework.Run) error {
	return labaccess.Lab(r).EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error {
		for _, t := range r.Timelines() {
			if t.Probe.From != n.Name() || t.Probe.To != db.Name {
				continue
			}
			err := workload.Forget(ctx, n, "--proto", "udp", "--orig-src", t.Target.Addr().String(), "--sport", strconv.Itoa(int(t.Target.Port())),
				"--orig-dst", rangeOf[n.Name()].String())
			if err != nil {
				return fmt.Errorf("forgetting flows that answers began: %w", err)
			}
		}
		return nil
	})
}
