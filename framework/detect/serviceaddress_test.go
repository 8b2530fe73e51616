package detect

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// Services of MetalLB's pool of two addresses, .2 and .3; of Cilium; of klipper, which notes nothing on a Service.
var (
	older, newer = time.Unix(1000, 0), time.Unix(1060, 0)
	dot1         = netip.MustParseAddr("192.0.2.1")
	dot2, dot3   = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	httpPort     = []snapshot.ServicePort{{Protocol: "TCP", Port: 80}}
)

func balancer(name string, created time.Time, has ...netip.Addr) snapshot.Service {
	s := snapshot.Service{Namespace: "default", Name: name, Created: created, LoadBalancerIPs: has, Ports: httpPort, Unserved: len(has) == 0, TakesAny: true}
	if len(has) > 0 {
		s.MetalLBPool = "services"
	}
	return s
}

func changed[T any](value T, change func(*T)) T {
	change(&value)
	return value
}

// asking is the Service with a request that it did not have before.
func asking(s snapshot.Service, wants ...netip.Addr) snapshot.Service {
	return changed(s, func(s *snapshot.Service) { s.Requests, s.Wants, s.TakesAny = "others", wants, false })
}

func TestServiceAddress(t *testing.T) {
	klipper := func(s *snapshot.Service) { s.MetalLBPool = "" }
	cilium := func(s *snapshot.Service) { s.MetalLBPool, s.Class = "", "io.cilium/l2-announcer" }
	classed := func(s *snapshot.Service) { s.Class = "example.com/metallb" }
	other := func(s *snapshot.Service) { s.Ports = []snapshot.ServicePort{{Protocol: "TCP", Port: 443}} }
	for _, tt := range []struct {
		name        string
		before, now []snapshot.Service // before is 10 s earlier
		version     string
		pool        string // the first address of the pool before; empty: as now
		says        []string
	}{
		{name: "a Service keeps its address", before: []snapshot.Service{balancer("shop", older, dot2)}, now: []snapshot.Service{balancer("shop", older, dot2)}},
		{name: "it is given to one that waited",
			before: []snapshot.Service{balancer("shop", older, dot2), balancer("w", newer)}, now: []snapshot.Service{balancer("shop", older), balancer("w", newer, dot2)},
			says: []string{"default/w has 192.0.2.2, which default/shop had at 00:17:32 UTC, and has not given back: clients of default/shop reach default/w."}},
		{name: "two are exchanged",
			before: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3)}, now: []snapshot.Service{balancer("a", older, dot3), balancer("b", older, dot2)},
			says: []string{"default/a has 192.0.2.3, which default/b had at 00:17:32 UTC, and has not given back: clients of default/b reach default/a.",
				"default/b has 192.0.2.2, which default/a had at 00:17:32 UTC, and has not given back: clients of default/a reach default/b."}},
		{name: "the Service asks for another one now",
			before: []snapshot.Service{balancer("shop", older, dot2), balancer("w", newer)}, now: []snapshot.Service{asking(balancer("shop", older, dot3), dot3), balancer("w", newer, dot2)}},
		{name: "the other asks for it now",
			before: []snapshot.Service{balancer("shop", older, dot2), balancer("w", newer)}, now: []snapshot.Service{balancer("shop", older), asking(balancer("w", newer, dot2), dot2)}},
		{name: "it is a new Service of the name",
			before: []snapshot.Service{balancer("shop", older, dot2), balancer("w", older)}, now: []snapshot.Service{balancer("shop", newer), balancer("w", older, dot2)}},
		{name: "the other is new",
			before: []snapshot.Service{balancer("shop", older, dot2)}, now: []snapshot.Service{balancer("shop", older), balancer("w", newer, dot2)}},
		{name: "the Service is of another type now", before: []snapshot.Service{balancer("shop", older, dot2), balancer("w", newer)},
			now: []snapshot.Service{asking(balancer("shop", older)), balancer("w", newer, dot2)}},
		{name: "nobody notes who gives addresses", before: []snapshot.Service{changed(balancer("shop", older, dot2), klipper), balancer("w", newer)},
			now: []snapshot.Service{balancer("shop", older), changed(balancer("w", newer, dot2), klipper)}},
		{name: "a newer one has what an older one asks for, in one read", now: []snapshot.Service{asking(balancer("shop", older), dot2), balancer("w", newer, dot2)},
			says: []string{"default/w has 192.0.2.2, which default/shop asks for, the older Service, which has no address: clients who use 192.0.2.2 for default/shop reach default/w."}},
		{name: "the older one has another address", now: []snapshot.Service{asking(balancer("shop", older, dot3), dot2), balancer("w", newer, dot2)}},
		{name: "both ask for it", now: []snapshot.Service{asking(balancer("shop", older), dot2), asking(balancer("w", newer, dot2), dot2)}},
		{name: "of two that have lost it, one stands as it was",
			before: []snapshot.Service{balancer("a", older, dot2), balancer("z", older, dot2), balancer("w", newer)},
			now:    []snapshot.Service{balancer("a", older), asking(balancer("z", older)), balancer("w", newer, dot2)},
			says:   []string{"default/w has 192.0.2.2, which default/a had at 00:17:32 UTC, and has not given back: clients of default/a reach default/w."}},
		{name: "the pools have changed", pool: "192.0.2.9",
			before: []snapshot.Service{balancer("shop", older, dot2), balancer("w", newer)}, now: []snapshot.Service{balancer("shop", older), balancer("w", newer, dot2)}},
		{name: "a new one asks for what another has", now: []snapshot.Service{balancer("shop", older, dot2), asking(balancer("w", newer), dot2)}},
		{name: "both have an address and a port of it", now: []snapshot.Service{balancer("shop", older, dot2), balancer("w", newer, dot2)},
			says: []string{"default/shop and default/w have 192.0.2.2 together, and port 80/TCP of it: a node gives its packets to one of them."}},
		{name: "so with Cilium", now: []snapshot.Service{changed(balancer("shop", older, dot2), cilium), changed(balancer("w", newer, dot2), cilium)},
			says: []string{"default/shop and default/w have 192.0.2.2 together, and port 80/TCP of it: a node gives its packets to one of them."}},
		{name: "they share it by a key, with different ports", now: []snapshot.Service{balancer("shop", older, dot2), changed(balancer("w", newer, dot2), other)}},
		{name: "all have the nodes' addresses", now: []snapshot.Service{changed(balancer("shop", older, dot2), klipper), changed(balancer("w", newer, dot2), klipper)}},
		{name: "so with a version that notes no pool", version: "v0.13.7",
			now:  []snapshot.Service{changed(balancer("shop", older, dot2), klipper), changed(balancer("w", newer, dot2), klipper)},
			says: []string{"default/shop and default/w have 192.0.2.2 together, and port 80/TCP of it: a node gives its packets to one of them."}},
		{name: "addresses of no pool with such a version", version: "v0.13.7",
			now: []snapshot.Service{changed(balancer("shop", older, dot1), klipper), changed(balancer("w", newer, dot1), klipper)}},
		{name: "one waits beside a full pool", version: "v0.13.12", now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), balancer("w", older)},
			says: []string{"Each address of the pool is a Service's, and 1 waits for one: default/w. With the next start of its controller MetalLB 0.13.12 may give them addresses that others have: it processes Services in no order."}},
		{name: "with a fixed version", version: "v0.14.3", now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), balancer("w", older)}},
		{name: "it was made a moment ago", version: "v0.13.12", now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), balancer("w", newer)}},
		{name: "with a distribution's version", version: "v0.13.12-4", now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), balancer("w", older)}},
		{name: "with a tag that moves", version: "v0.13", now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), balancer("w", older)}},
		{name: "an address is free", version: "v0.13.12", now: []snapshot.Service{balancer("a", older, dot2), balancer("w", older)}},
		{name: "it asks for an address, or for a pool", version: "v0.13.12",
			now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), asking(balancer("w", older))}},
		{name: "MetalLB is for a class alone", version: "v0.13.12",
			now: []snapshot.Service{changed(balancer("a", older, dot2), classed), changed(balancer("b", older, dot3), classed), balancer("w", older)}},
		{name: "it is another load balancer's", version: "v0.13.12",
			now: []snapshot.Service{balancer("a", older, dot2), balancer("b", older, dot3), changed(balancer("w", older), func(s *snapshot.Service) { s.Class = "example.com/lb" })}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := func(at time.Time, services []snapshot.Service) snapshot.Snapshot {
				return snapshot.Snapshot{
					Time: at, Services: snapshot.List[snapshot.Service]{Read: true, Items: services},
					AddressPools: snapshot.List[snapshot.AddressPool]{Read: true, Items: []snapshot.AddressPool{
						{Name: "services", Any: true, Avoids: true, Ranges: []snapshot.AddressRange{{First: dot2, Last: dot3}, {First: netip.MustParseAddr("192.0.3.255"), Last: netip.MustParseAddr("192.0.3.255")}}},
						{Name: "other", Ranges: []snapshot.AddressRange{{First: netip.MustParseAddr("198.51.100.1"), Last: netip.MustParseAddr("198.51.100.9")}}},
					}},
					PodImages: snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Containers: []snapshot.RunningContainer{
						{Container: snapshot.Container{Image: "quay.io/metallb/controller:" + tt.version}}}}}},
				}
			}
			history := []snapshot.Snapshot{read(newer.Add(2*time.Second), tt.now)}
			if tt.before != nil {
				history = slices.Insert(history, 0, read(newer.Add(-8*time.Second), tt.before))
				if tt.pool != "" {
					history[0].AddressPools.Items[0].Ranges[0].First = netip.MustParseAddr(tt.pool)
				}
			}
			must.Equal(t, "says", tt.says, each.Of(Run([]Detector{ServiceAddress{}}, history), sentenceOf))
		})
	}
}
