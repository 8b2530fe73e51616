// Package upgrade upgrades a component of a lab from one version to another, node after node and
// under traffic, rolls it back, and measures the effect. Run acts, and writes an append-only
// history (package history); MeasuresOf is a pure function of the declaration and that history.
package upgrade

import (
	"net/netip"
	"time"
)

// Measures are the effects of an upgrade and its rollback on a lab.
type Measures struct {
	Component string `json:"component"`
	// Form is how much of the vendor's program ran: "whole" or "slice".
	Form     string `json:"form"`
	Topology string `json:"topology"`
	// Resting is a time before the upgrade, with From on all nodes: what the lab loses by itself.
	Resting Phase `json:"resting"`
	// Upgrade is the rollout of the new version, and Back the rollout of the old version after it; nil if it did not
	// begin. Stopped says why the upgrade ended early; empty if it did not, or was interrupted.
	Upgrade *Rollout `json:"upgrade,omitempty"`
	Back    *Rollout `json:"back,omitempty"`
	Stopped string   `json:"stopped,omitempty"`
	// Failovers are changes of the node that answers for an address by ARP: of each kind with From, then with To.
	Failovers []Failover `json:"failovers,omitempty"`
	// Undone is an upgrade of one node that was taken back at once; nil: not tried.
	Undone *Undone `json:"undone,omitempty"`
	// Left are the differences between the nodes before the upgrade and after the rollback; nil: not compared.
	Left []Difference `json:"left"`
}

// Rollout is the replacement of one version by another, node after node.
type Rollout struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Nodes are in the order in which they were changed.
	Nodes []NodeStep `json:"nodes"`
	// Restart is the restart of an agent of From in the middle of the rollout; nil: none.
	Restart *Restart `json:"restart,omitempty"`
	// Ends says how the new version ends each time it is started; empty if it does not end, or that is not known.
	Ends string `json:"ends,omitempty"`
	// NotWorking says why the new version does not work, or not for long; empty if it works, or that is not known.
	NotWorking string `json:"not_working,omitempty"`
	// During is the time from the first change until the last node was ready, and After a time without changes after it.
	During Phase `json:"during"`
	After  Phase `json:"after"`
}

// Undone is an upgrade of one node that was taken back at once.
type Undone struct {
	Node string `json:"node"`
	// NotDone is why a version did not get ready; empty if both did.
	NotDone string `json:"not_done,omitempty"`
	// Phase is a time that begins some seconds after From was ready again.
	Phase Phase `json:"phase"`
}

type NodeStep struct {
	Node  string    `json:"node"`
	Began time.Time `json:"began"`
	// Ready is when the new version worked on the node; zero if it never did.
	Ready time.Time `json:"ready"`
}

// Restart is a restart of an agent of From when half of the rollout was done, as after a crash, an OOM kill or a
// reboot. The agent starts again with To's objects in the cluster.
type Restart struct {
	Node  string    `json:"node"`
	Began time.Time `json:"began"`
	// Ready is when the agent worked again; zero if it never did.
	Ready time.Time `json:"ready"`
	// NotBack is what was seen last of an agent that does not work, or with Ready, no longer works; else empty.
	NotBack string `json:"not_back,omitempty"`
	// NotDone is why the agent could not be ended, or not asked for work; then there is no result.
	NotDone string `json:"not_done,omitempty"`
	// Phase is the time from Began until the next node was changed.
	Phase Phase `json:"phase"`
}

// Phase is a span of time under traffic.
type Phase struct {
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	Paths   []Path    `json:"paths"`
	Routers []Router  `json:"routers"`
}

// Path is the traffic on one kind of path through the lab, summed over Probes.
type Path struct {
	// Name is the kind of path, such as "outside to pod".
	Name   string   `json:"name"`
	Probes []string `json:"probes"`
	// Due is how many packets the probes' rates ask for. NotJudged were sent, with an unknown outcome.
	Due       int `json:"due"`
	Sent      int `json:"sent"`
	Answered  int `json:"answered"`
	Lost      int `json:"lost"`
	NotJudged int `json:"not_judged"`
	// LongestGapMS is the longest time in which a probe, GapProbe, lost every packet with a known outcome.
	LongestGapMS int64  `json:"longest_gap_ms"`
	GapProbe     string `json:"gap_probe,omitempty"`
	// LongestSilenceMS is the longest time in which a probe, SilenceProbe, had no known answer, also because packets were
	// not sent or have no known outcome.
	LongestSilenceMS int64  `json:"longest_silence_ms"`
	SilenceProbe     string `json:"silence_probe,omitempty"`
	// Broken counts long-lived connections that broke.
	Broken int `json:"connections_broken"`
	// Sources are the addresses from which packets arrived, in the order of the probes; only with PathKind.BySource.
	Sources []Source `json:"sources,omitempty"`
	// Each are the counts of the probes, only in the phase of a Restart.
	Each []ProbeCount `json:"each,omitempty"`
	// LostIn are the steps of a rollout with a Restart in which packets were lost.
	LostIn []LostIn `json:"lost_in,omitempty"`
}

// Unserved reports whether no packet of the path was answered although packets were sent.
func (p Path) Unserved() bool { return p.Answered == 0 && p.Lost > 0 }

// ProbeCount has Path's counts for one probe.
type ProbeCount struct {
	Probe     string `json:"probe"`
	Due       int    `json:"due"`
	Answered  int    `json:"answered"`
	Lost      int    `json:"lost"`
	NotJudged int    `json:"not_judged"`
}

// Source is an address from which packets of a probe arrived.
type Source struct {
	Probe   string     `json:"probe"`
	Address netip.Addr `json:"address"`
	// Of is the owner of the address: OfPod, OfNode, or empty for neither.
	Of      string `json:"of,omitempty"`
	Packets int    `json:"packets"`
}

// Owners of the address of a Source: the pod that sends, or its node.
const (
	OfPod  = "pod"
	OfNode = "node"
)

// LostIn is what a path lost from the beginning of a step of a rollout to the beginning of the next step.
type LostIn struct {
	Step         string `json:"step"` // such as "worker1 gets 1.19.3"
	Lost         int    `json:"lost"`
	LongestGapMS int64  `json:"longest_gap_ms"`
}

// Router is what one router learned from its neighbours.
type Router struct {
	Name string `json:"name"`
	// Polls is how often its tables were read, and Due how often they should have been.
	Polls int `json:"looks"`
	Due   int `json:"looks_due"`
	// Withdrawals are prefixes that were withdrawn, even for a time. NextHops are prefixes whose next hops changed. Resets
	// are neighbours whose sessions went down. TwoOrigins are prefixes that more than one node
	// announced at once, and at most one node before.
	Withdrawals []string `json:"withdrawals"`
	NextHops    []string `json:"next_hops"`
	Resets      []string `json:"resets"`
	TwoOrigins  []string `json:"two_origins"`
	// Answerers are addresses on its link whose answering node changed.
	Answerers []string `json:"answerers,omitempty"`
	// TwoAnswerers are addresses for which several stations answered at once, for some seconds.
	TwoAnswerers []string `json:"two_answerers,omitempty"`
	// Events are all these changes and later changes of the same items, in order of time.
	Events []RouterEvent `json:"events"`
}

// RouterEvent is a change that a poll of a router showed.
type RouterEvent struct {
	At   time.Time `json:"at"` // of the poll
	Says string    `json:"says"`
}

// Difference is one item of a node's kernel that the upgrade and the rollback changed.
type Difference struct {
	Node string `json:"node"`
	// Kind is "rule", "route", "set", "virtual server", "address", "link" or "connection".
	Kind  string `json:"kind"`
	What  string `json:"what"`
	Added bool   `json:"added"`
}
