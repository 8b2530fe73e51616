// Package snapshot collects the state of every layer of a cluster's network at one moment:
// Kubernetes, the CNI, the BGP routers, and the nodes' kernels. The caller of Open chooses
// the sources, and an Access reaches them. The package only reads; package detect judges.
package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
)

// Parse decodes the JSON of a snapshot with at most so many objects, and ten times as many values.
// Text of a stranger's can be short, and take a hundred times its size in memory: "{}" is a rule.
func Parse(text []byte, objects int) (s Snapshot, err error) {
	if bytes.Count(text, []byte("{")) > objects || bytes.Count(text, []byte(",")) > 10*objects {
		return s, fmt.Errorf("it has more than %d objects, or %d values", objects, 10*objects)
	}
	err = json.Unmarshal(text, &s)
	return s, err
}

// Snapshot is the state of all layers at one moment. It is plain data, which survives
// encoding as JSON.
type Snapshot struct {
	// Time is when the collection began, Took how long it lasted: everything
	// in the snapshot was read in between.
	Time time.Time     `json:"time"`
	Took time.Duration `json:"took_ns"`
	// ServerAhead is how far the clock of the API server is ahead of the one that Time is of, to
	// a second. Zero: not far enough to tell, or not known.
	ServerAhead time.Duration `json:"server_ahead_ns,omitempty"`
	// Redacted is set if names and addresses were replaced: it cannot be judged.
	Redacted bool `json:"redacted,omitempty"`
	// Sources are those of the collector. The fields of others are empty.
	Sources []Asked `json:"sources,omitempty"`

	Nodes        List[Node]        `json:"nodes,omitzero"`
	CiliumNodes  List[CiliumNode]  `json:"cilium_nodes,omitzero"`
	CalicoBlocks List[CalicoBlock] `json:"calico_blocks,omitzero"`
	CalicoPools  List[CalicoPool]  `json:"calico_pools,omitzero"`
	CalicoPeers  List[CalicoPeer]  `json:"calico_peers,omitzero"`
	MetalLBPeers List[MetalLBPeer] `json:"metallb_peers,omitzero"`
	// NodeSelections are in order of kind and name.
	NodeSelections List[NodeSelection] `json:"node_selections,omitzero"`
	Pods           List[Pod]           `json:"pods,omitzero"`
	// Tags are in order of image.
	Workloads List[Workload]  `json:"workloads,omitzero"`
	PodImages List[PodImages] `json:"pod_images,omitzero"`
	Tags      List[Tag]       `json:"tags,omitzero"`
	// Accounts are the ServiceAccounts of running pods.
	Accounts   List[Account]   `json:"accounts,omitzero"`
	ConfigMaps List[ConfigMap] `json:"config_maps,omitzero"`
	// What is read per router, node or host is in order of their names, with one item for
	// each, whether it could be read or not.
	Routers        []Router            `json:"routers,omitempty"`
	NodeTables     []NodeTable         `json:"node_tables,omitempty"`
	NodeNetworks   []NodeNetwork       `json:"node_networks,omitempty"`
	CalicoAgents   List[CalicoAgent]   `json:"calico_agents,omitzero"`
	Services       List[Service]       `json:"services,omitzero"`
	EndpointSlices List[EndpointSlice] `json:"endpoint_slices,omitzero"`
	// BGPAdvertisements are MetalLB's, Cilium's and Calico's.
	BGPAdvertisements List[BGPAdvertisement] `json:"bgp_advertisements,omitzero"`
	// AddressPools are MetalLB's.
	AddressPools List[AddressPool] `json:"address_pools,omitzero"`
	// L2Announcements are MetalLB's and Cilium's.
	L2Announcements List[L2Announcement] `json:"l2_announcements,omitzero"`
	Proxies         []Proxy              `json:"proxies,omitempty"`
	Firewalls       []Firewall           `json:"firewalls,omitempty"`
	NAT             []NodeNAT            `json:"nat,omitempty"`
	Outside         []HostSockets        `json:"outside,omitempty"`
}

// Isolation is the name of a source that is unavailable while packets of a lab could leave the
// machine. It is listed only then.
const Isolation = "isolation of the lab"

// Asked is a source of a collector.
type Asked struct {
	Name string `json:"name"`
	// Unreachable is why the access cannot reach it at all; empty if it can. Whether it was
	// read is in its field of the snapshot.
	Unreachable string `json:"unreachable,omitempty"`
}

// List is the answer of one source. An unavailable source is not the same as an empty list: check
// Read before Items. A source that the collector does not have is not read, and has no Error.
type List[T any] struct {
	Read bool `json:"read"`
	// Error is why the source was not read.
	Error string        `json:"error,omitempty"`
	Took  time.Duration `json:"took_ns"`
	Items []T           `json:"items,omitempty"`
}

// Unavailable returns what could not be read.
func (s Snapshot) Unavailable() []Missing {
	var all []Missing
	for _, asked := range s.Sources {
		i := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == asked.Name })
		switch {
		case asked.Unreachable != "":
			all = append(all, Missing{asked.Name, asked.Unreachable})
		case i < 0: // of a stored snapshot
			all = append(all, Missing{asked.Name, "no source has that name"})
		default:
			for _, p := range kinds[i].parts(s) {
				if !p.read {
					all = append(all, Missing{p.what, p.why})
				}
			}
		}
	}
	return all
}

// WithoutFlows returns the snapshot without the nodes' flows and the sockets of outside hosts,
// which take most of its memory if there are many connections.
func (s Snapshot) WithoutFlows() Snapshot {
	s.NAT, s.Outside = slices.Clone(s.NAT), nil
	for i := range s.NAT {
		s.NAT[i].Flows = List[Flow]{}
	}
	return s
}

// Only returns what a collector of these sources alone would have read.
func (s Snapshot) Only(sources ...Source) Snapshot {
	return Only([]Snapshot{s}, sources...)[0]
}

// Only returns for each snapshot what a collector of these sources alone would have read.
func Only(all []Snapshot, sources ...Source) []Snapshot {
	seen := make([]Snapshot, len(all))
	for i, s := range all {
		seen[i].Time, seen[i].Took, seen[i].ServerAhead = s.Time, s.Took, s.ServerAhead
	}
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
		for i := range all {
			k.copy(&seen[i], &all[i], names)
			if at := slices.IndexFunc(all[i].Sources, func(a Asked) bool { return a.Name == k.name }); at >= 0 {
				seen[i].Sources = append(seen[i].Sources, all[i].Sources[at])
			}
		}
	}
	return seen
}

// Missing is something that was not read.
type Missing struct {
	Source string
	Reason string
}

// Forbidden reports whether RBAC does not permit to read it.
func (m Missing) Forbidden() bool { return strings.Contains(m.Reason, NotPermitted) }

// String is SOURCE: REASON.
func (m Missing) String() string { return m.Source + ": " + m.Reason }

// MarshalText implements encoding.TextMarshaler, as String does it.
func (m Missing) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. No source has a colon and a space in its name.
func (m *Missing) UnmarshalText(text []byte) error {
	m.Source, m.Reason, _ = strings.Cut(string(text), ": ")
	return nil
}

// Sentences joins what was not read, in one line.
func Sentences(all []Missing) string {
	return each.Joined(all, "; ", Missing.String)
}
