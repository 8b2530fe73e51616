// Package upgrade takes a component of a lab from one version to another, node after
// node and under traffic, and back, and measures what that does.
package upgrade

import "time"

// Measures are what an upgrade and the way back did to a lab.
type Measures struct {
	Component string `json:"component"`
	// Form is how much of the vendor's program ran: "whole" or "slice".
	Form     string `json:"form"`
	Topology string `json:"topology"`
	// Resting is a time before the upgrade, with From on all nodes: what the lab
	// loses by itself.
	Resting Phase `json:"resting"`
	// Upgrade is the rollout of the new version, and Back that of the old one after
	// it. Nil where it was not come to; Stopped says why.
	Upgrade *Rollout `json:"upgrade,omitempty"`
	Back    *Rollout `json:"back,omitempty"`
	Stopped string   `json:"stopped,omitempty"`
	// Left is what is on the nodes after the way back and was not there before the
	// upgrade, or the other way round; nil where it was not looked at.
	Left []Difference `json:"left"`
}

// Rollout is one version taking the place of another, node after node.
type Rollout struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Nodes are in the order in which they were changed.
	Nodes []NodeStep `json:"nodes"`
	// During is from the first change until the last node was ready, After a time
	// of rest from then on.
	During Phase `json:"during"`
	After  Phase `json:"after"`
}

// NodeStep is the change of one node.
type NodeStep struct {
	Node  string    `json:"node"`
	Began time.Time `json:"began"`
	// Ready is when the new version did its work on the node.
	Ready time.Time `json:"ready"`
}

// Phase is a span of time under traffic.
type Phase struct {
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	Paths   []Path    `json:"paths"`
	Routers []Router  `json:"routers"`
}

// Path is what became of the traffic on one way through the lab, all its probes taken
// together.
type Path struct {
	// Name is what kind of way it is, such as "outside to pod", and Probes those on it.
	Name   string   `json:"name"`
	Probes []string `json:"probes"`
	// Due is how many packets the rates of the probes ask for; the others are what
	// became of them. Those that nobody could judge are neither lost nor answered.
	Due       int `json:"due"`
	Sent      int `json:"sent"`
	Answered  int `json:"answered"`
	Lost      int `json:"lost"`
	NotJudged int `json:"not_judged"`
	// LongestGapMS is the longest time for which one of the probes had no answer, and
	// GapProbe which one that was; zero and empty where nothing was lost.
	LongestGapMS int64  `json:"longest_gap_ms"`
	GapProbe     string `json:"gap_probe,omitempty"`
	// Broken counts long-lived connections that did not live through the phase.
	Broken int `json:"connections_broken"`
}

// Router is what one router saw of its neighbours.
type Router struct {
	Name string `json:"name"`
	// Looks is how often its tables were read, and Due how often they should have been.
	Looks int `json:"looks"`
	Due   int `json:"looks_due"`
	// Withdrawals are prefixes that were gone for a time or for good, NextHops such
	// whose next hops changed, Resets sessions that went down, TwoOrigins prefixes
	// that more than one node announced at once and only one did before.
	Withdrawals []string `json:"withdrawals"`
	NextHops    []string `json:"next_hops"`
	Resets      []string `json:"resets"`
	TwoOrigins  []string `json:"two_origins"`
	// Events are all of that, and what came in their place, in order of time.
	Events []RouterEvent `json:"events"`
}

// RouterEvent is a change that a look at a router showed.
type RouterEvent struct {
	At   time.Time `json:"at"` // of the look
	Says string    `json:"says"`
}

// Difference is one thing of a node that the way there and back has changed.
type Difference struct {
	Node string `json:"node"`
	// Kind is "rule", "route", "set", "virtual server", "address", "link" or "connection".
	Kind  string `json:"kind"`
	What  string `json:"what"`
	Added bool   `json:"added"`
}
