package snapshot

import (
	"cmp"
	"context"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// L2Announcement is which node announces the addresses of a Service on its links, by ARP and NDP: what
// MetalLB says in a ServiceL2Status (from 0.14.8 on), or the holder of a lease of Cilium.
type L2Announcement struct {
	Service string `json:"service"` // namespace/name
	Node    string `json:"node"`
	// Lease is Cilium's lease, namespace/name; empty for MetalLB.
	Lease string `json:"lease,omitempty"`
}

// L2Announcements is the source of what MetalLB and Cilium say, in order of Service and node. A cluster
// that announces nothing in this way, or does not say it, has none.
var L2Announcements = clusterList("announcements of MetalLB and Cilium by ARP",
	[]*resource{listedL2Statuses.resource, listedLeases.resource, listedServices.resource, listedDefinitions.resource},
	(*cluster).l2Announcements, func(s *Snapshot) *List[L2Announcement] { return &s.L2Announcements }, L2Announcement.state)

func (a L2Announcement) state(to *statements) {
	to.add(API, "announcement by ARP", a.Service, a.Node, "%s", a.Node)
}

// l2Status is what is read of MetalLB's ServiceL2Status.
type l2Status struct {
	Status struct {
		Node             string `json:"node"`
		ServiceName      string `json:"serviceName"`
		ServiceNamespace string `json:"serviceNamespace"`
	} `json:"status"`
}

var (
	listedL2Statuses = customList[l2Status](metalLB.WithResource("servicel2statuses"), "ServiceL2Statuses")
	listedLeases     = func() listed[coordinationv1.Lease] {
		l := customList[coordinationv1.Lease](coordinationv1.SchemeGroupVersion.WithResource("leases"), "Leases")
		l.fields = "metadata.namespace!=kube-node-lease" // where each node has one
		return l
	}()
)

// leaseKept is how long after its end a lease still counts: the clocks of nodes differ.
const leaseKept = time.Minute

func (c *cluster) l2Announcements(ctx context.Context) ([]L2Announcement, error) {
	statuses, err := listedL2Statuses.whole(ctx, c)
	leases, err2 := listedLeases.list(ctx, c)
	services, err3 := listedServices.list(ctx, c)
	if err := failures(err, err2, err3); err != nil {
		return nil, err
	}
	var all []L2Announcement
	for _, o := range statuses {
		if s := o.value.Status; s.Node != "" {
			all = append(all, L2Announcement{Service: s.ServiceNamespace + "/" + s.ServiceName, Node: same(s.Node)})
		}
	}
	// The name does not tell where the namespace ends (pkg/l2announcer, newLeaseLock).
	named := map[string]string{}
	for _, s := range services {
		named["cilium-l2announce-"+s.namespace+"-"+s.name] = s.namespace + "/" + s.name
	}
	now := time.Now().Add(c.clockAhead())
	for _, o := range leases {
		service, spec := named[o.name], o.value.Spec
		if service != "" && o.err != nil {
			return nil, o.err
		}
		if service == "" || spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
			continue
		}
		if spec.RenewTime != nil && spec.LeaseDurationSeconds != nil &&
			now.Sub(spec.RenewTime.Time) > time.Duration(*spec.LeaseDurationSeconds)*time.Second+leaseKept {
			continue // nobody holds it any more
		}
		all = append(all, L2Announcement{Service: service, Node: same(*spec.HolderIdentity), Lease: o.namespace + "/" + o.name})
	}
	slices.SortFunc(all, func(a, b L2Announcement) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Node, b.Node))
	})
	return all, nil
}
