// Package snapshot collects what every layer of a cluster's network says at
// one moment: Kubernetes, the CNI, the BGP routers, the nodes' kernels, and
// what else has a Source here. The caller of Open says which sources
// snapshots hold; an Access says how they are reached. The package only reads,
// and it judges nothing: package detect does.
package snapshot

import (
	"fmt"
	"slices"
	"time"
)

// Snapshot is what all layers said at one moment. It is plain data: JSON reads
// back what it wrote.
type Snapshot struct {
	// Time is when the collection began, Took how long it lasted: everything
	// in the snapshot was read in between.
	Time time.Time     `json:"time"`
	Took time.Duration `json:"took_ns"`
	// Sources are those that the collector was asked for. The parts of others
	// are empty.
	Sources []Asked `json:"sources,omitempty"`

	Nodes       List[Node]       `json:"nodes,omitzero"`
	CiliumNodes List[CiliumNode] `json:"cilium_nodes,omitzero"`
	Pods        List[Pod]        `json:"pods,omitzero"`
	// Tags are in order of image.
	Workloads  List[Workload]  `json:"workloads,omitzero"`
	PodImages  List[PodImages] `json:"pod_images,omitzero"`
	Tags       List[Tag]       `json:"tags,omitzero"`
	ConfigMaps List[ConfigMap] `json:"config_maps,omitzero"`
	// What is read of each router, node or host is in order of their names,
	// with one item for each, whether it could be read or not.
	Routers        []Router            `json:"routers,omitempty"`
	NodeTables     []NodeTable         `json:"node_tables,omitempty"`
	NodeNetworks   []NodeNetwork       `json:"node_networks,omitempty"`
	CalicoAgents   List[CalicoAgent]   `json:"calico_agents,omitzero"`
	Services       List[Service]       `json:"services,omitzero"`
	EndpointSlices List[EndpointSlice] `json:"endpoint_slices,omitzero"`
	Proxies        []Proxy             `json:"proxies,omitempty"`
	Firewalls      []Firewall          `json:"firewalls,omitempty"`
	NAT            []NodeNAT           `json:"nat,omitempty"`
	Outside        []HostSockets       `json:"outside,omitempty"`
}

// Asked is a source that a collector was asked for.
type Asked struct {
	Name string `json:"name"`
	// Unreachable says why the access could not give it at all; empty if it
	// could. Whether it was read is in its part of the snapshot.
	Unreachable string `json:"unreachable,omitempty"`
}

// List is what one source said. A source that could not be read is not the
// same as one that lists nothing: check Read before Items.
// One that was not asked for is not read, and has no Error.
type List[T any] struct {
	Read bool `json:"read"`
	// Error says why the source was not read.
	Error string        `json:"error,omitempty"`
	Took  time.Duration `json:"took_ns"`
	Items []T           `json:"items,omitempty"`
}

// Unread says, for each source that should have been read and was not, which
// one it is and why.
func (s Snapshot) Unavailable() []string {
	var all []string
	say := func(what string, read bool, why string) {
		if !read {
			all = append(all, fmt.Sprintf("%s: %s", what, why))
		}
	}
	for _, asked := range s.Sources {
		i := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == asked.Name })
		switch {
		case asked.Unreachable != "":
			say(asked.Name, false, asked.Unreachable)
		case i < 0: // of a stored snapshot
			say(asked.Name, false, "no source has that name")
		default:
			for _, p := range kinds[i].parts(s) {
				say(p.what, p.read, p.why)
			}
		}
	}
	return all
}

// WithoutFlows returns the snapshot without the nodes' flows and the sockets of the
// hosts outside, by far most of it where connections are many: as if they had not
// been asked for.
func (s Snapshot) WithoutFlows() Snapshot {
	s.NAT, s.Outside = slices.Clone(s.NAT), nil
	for i := range s.NAT {
		s.NAT[i].Flows = List[Flow]{}
	}
	return s
}

// Only returns what a collector of these sources alone would have read.
func (s Snapshot) Only(sources ...Source) Snapshot {
	seen := Snapshot{Time: s.Time, Took: s.Took}
	for _, k := range kinds {
		var names []string
		for _, source := range sources {
			if source.kind == k {
				names = append(names, source.name)
			}
		}
		if len(names) == 0 {
			continue
		}
		k.copy(&seen, &s, names)
		if i := slices.IndexFunc(s.Sources, func(a Asked) bool { return a.Name == k.name }); i >= 0 {
			seen.Sources = append(seen.Sources, s.Sources[i])
		}
	}
	return seen
}
