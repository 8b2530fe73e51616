package masqueradedrift

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// rules asserts that the rules of each node masquerade but for the native CIDR, or not at all.
func rules(name string, want bool) framework.Check {
	holds := func(_ context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		read := 0
		for _, n := range r.Snapshot().NAT {
			if !n.Rules.Read {
				continue
			}
			read++
			if rule, there := cilium.Masquerade(n.Rules.Items, rangeOf[n.Node], nativeCIDR); there != want {
				wrong.Addf("%s masquerades: %v %s", n.Node, there, rule.Text)
			}
		}
		if read < len(nodes) {
			return false, "", fmt.Errorf("the rules of %d nodes were read, of %d", read, len(nodes))
		}
		return wrong.Result()
	}
	return framework.Check{ID: "rules", Name: name, Reads: []snapshot.Source{snapshot.NAT}, Holds: holds}
}

// configured asserts that what the vendor's code has written for each node's BPF programs asks for BPF
// NodePort in plain DSR mode, as the incident's ConfigMap does, and for masquerading or not.
func configured(name string, want bool) framework.Check {
	holds := func(ctx context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		for _, n := range nodes {
			header, err := labaccess.Lab(r).Node(n).Exec(ctx, "cat", cilium.NodeHeader)
			if err != nil {
				return false, "", fmt.Errorf("reading the header of %s: %w", n, err)
			}
			for define, asked := range map[string]bool{"ENABLE_NODEPORT": true, "ENABLE_DSR": true, "ENABLE_DSR_HYBRID": false,
				"ENABLE_MASQUERADE": want} {
				if strings.Contains(header, "\n#define "+define+" 1\n") != asked {
					wrong.Addf("%s: %s is defined: %t", n, define, !asked)
				}
			}
		}
		return wrong.Result()
	}
	return framework.Check{ID: "bpf-masquerade", Name: "the agents of Cilium " + name, Holds: holds}
}

var podAddresses = []snapshot.Source{snapshot.Pods}

// seenAs asserts that these far endpoints have seen each probe from a pod with the pod's own address
// and no other. A probe that did not arrive is wrong, too.
func seenAs(to ...string) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		own := map[string]netip.Addr{}
		for _, p := range r.Snapshot().Pods.Items {
			own[p.Name] = p.IP
		}
		var wrong framework.Mismatches
		found := 0
		for _, t := range r.Timelines() {
			if !slices.Contains(nodes, t.Probe.From) || !slices.Contains(to, t.Probe.To) {
				continue
			}
			found++
			if len(t.Sources) == 0 {
				wrong.Addf("%s did not arrive", t.Probe.Name)
			}
			for _, s := range t.Sources {
				if s.Address != own["probe-"+t.Probe.From] {
					wrong.Addf("%s is seen as %s", t.Probe.Name, s.Address)
				}
			}
		}
		if found == 0 {
			return false, "no such probe runs", nil
		}
		return wrong.Result()
	}
}

// behindNodes asserts that these probes, one from each node, have been seen under their node's
// address, by a source that matters accepts.
func behindNodes(r *framework.Run, probes []probe.Probe, matters func(probe.Source) bool) *framework.Mismatches {
	wrong := &framework.Mismatches{}
	for _, p := range probes {
		at := r.Address(p.From)
		if !slices.ContainsFunc(r.Timelines(), func(t probe.Timeline) bool {
			return t.Probe.Name == p.Name && slices.ContainsFunc(t.Sources, func(s probe.Source) bool { return s.Address == at && matters(s) })
		}) {
			wrong.Addf("%s is not seen as %s", p.Name, at)
		}
	}
	return wrong
}

// denied asserts that the database denies the application at its node's address, by the error that the
// application gets and by the server's own log. It admitted the application at its pod's.
var denied = framework.Check{
	ID: "denied", Name: "the application is denied at the nodes' addresses, by the error that it gets and by the server's " +
		"log", Bound: 5 * time.Second,
	Holds: func(ctx context.Context, r *framework.Run) (bool, string, error) {
		log, err := mariadb.ErrorLog(ctx, labaccess.Lab(r).Host(db.Name))
		if err != nil {
			return false, "", err
		}
		wrong := behindNodes(r, logins(dbServer, db), func(s probe.Source) bool { return s.Denied > 0 })
		for _, n := range nodes {
			if !mariadb.Denied(log, app.User, r.Address(n)) {
				wrong.Addf("the log has no line about %s, %s", n, r.Address(n))
			}
		}
		return wrong.Result()
	},
}

// flowsAreHidden asserts that the pods' UDP flows to the outside, which began before the upgrade, have
// been seen as their nodes'. BPF programs translate each packet, also of flows that connection tracking
// knows.
func flowsAreHidden(_ context.Context, r *framework.Run) (bool, string, error) {
	return behindNodes(r, []probe.Probe{pod1.To(db), pod2.To(db)}, func(probe.Source) bool { return true }).Result()
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
	if holds, saw, err := seenAs(db.Name)(ctx, r); !holds || err != nil {
		return false, saw, err
	}
	at := r.Address(db.Name).String()
	if err := forget(ctx, r, "--orig-src", "--proto", "udp", "--orig-dst", at); err != nil {
		return false, "", err
	}
	var failed error // to forget flows, at last
	err := await.Until(ctx, "the flows to be seen as the nodes'", 50*time.Millisecond, restartedWithin,
		func(ctx context.Context) (bool, string, error) {
			hidden, saw, err := flowsAreHidden(ctx, r)
			if !hidden && err == nil {
				err = forget(ctx, r, "--orig-dst", "--proto", "udp", "--orig-src", at, "--sport", strconv.Itoa(wire.DefaultPort))
			}
			if ctx.Err() == nil {
				failed = err
			}
			return hidden, saw, err
		})
	if err != nil {
		return false, err.Error(), failed
	}
	return true, "", nil
}

// forget makes each node's kernel forget the connections that a filter of conntrack(8) selects and that have a pod
// of the node at one end, such as --orig-src.
func forget(ctx context.Context, r *framework.Run, end string, filter ...string) error {
	return labaccess.Lab(r).EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error {
		return workload.Forget(ctx, n, append(slices.Clone(filter), end, rangeOf[n.Name()].String())...)
	})
}
