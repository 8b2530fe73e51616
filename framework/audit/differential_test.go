package audit

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	update = flag.Bool("update", false, "rewrite the golden file")
	// full is for finding out how a case differs: run it before a change and after.
	full = flag.String("full", "", "write the findings of each case to this folder")
)

// pick returns one of some items; the list must have one.
func pick[T any](r *rand.Rand, of []T) *T { return &of[r.IntN(len(of))] }

// drop returns a list without one of its items.
func drop[T any](r *rand.Rand, of []T) []T {
	i := r.IntN(len(of))
	return slices.Concat(of[:i], of[i+1:])
}

// damages are changes of a small cluster, each of which one detector at least may see.
var damages = []func(r *rand.Rand, s *snapshot.Snapshot){
	func(r *rand.Rand, s *snapshot.Snapshot) { // of a RIB
		t := pick(r, s.Routers)
		t.Paths.Items = drop(r, t.Paths.Items)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // no router has it
		p := pick(r, s.Routers[0].Paths.Items).Prefix
		if service := pick(r, s.Services.Items); len(service.LoadBalancerIPs) > 0 {
			p = netip.PrefixFrom(service.LoadBalancerIPs[0], service.LoadBalancerIPs[0].BitLen())
		}
		for i := range s.Routers {
			t := &s.Routers[i]
			t.Paths.Items = slices.DeleteFunc(slices.Clone(t.Paths.Items), func(o snapshot.Path) bool { return o.Prefix == p })
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // to another node
		p := pick(r, pick(r, s.Routers).Paths.Items)
		p.NextHop, p.Neighbor = pick(r, s.Nodes.Items).InternalIPs[0], pick(r, s.Nodes.Items).InternalIPs[0]
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // a second path
		t := pick(r, s.Routers)
		p := *pick(r, t.Paths.Items)
		p.NextHop, p.Best = pick(r, s.Nodes.Items).InternalIPs[0], false
		p.Neighbor = p.NextHop
		t.Paths.Items = append(t.Paths.Items, p)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // no best one
		pick(r, pick(r, s.Routers).Paths.Items).Best = false
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // from a spine, over iBGP
		p := pick(r, pick(r, s.Routers).Paths.Items)
		p.Internal, p.Neighbor = true, netip.MustParseAddr("192.0.2.9")
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // from a stranger in the nodes' AS
		t := pick(r, s.Routers)
		stranger := netip.AddrFrom4([4]byte{172, 16, 255, byte(r.IntN(4))})
		t.Neighbors.Items = append(t.Neighbors.Items, snapshot.Neighbor{Address: stranger, AS: nodeAS, State: snapshot.SessionEstablished})
		p := *pick(r, t.Paths.Items)
		p.NextHop, p.Neighbor = stranger, stranger
		t.Paths.Items = append(t.Paths.Items, p)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // an aggregate
		t := pick(r, s.Routers)
		p := *pick(r, t.Paths.Items)
		p.Prefix = netip.PrefixFrom(p.Prefix.Addr(), p.Prefix.Bits()-1-r.IntN(8)).Masked()
		t.Paths.Items = append(t.Paths.Items, p)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // an aggregate from a spine
		t := pick(r, s.Routers)
		p := *pick(r, t.Paths.Items)
		p.Prefix = netip.PrefixFrom(p.Prefix.Addr(), p.Prefix.Bits()-1-r.IntN(8)).Masked()
		p.NextHop, p.Neighbor = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.1")
		t.Paths.Items = append(t.Paths.Items, p)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // one address of a range
		t := pick(r, s.Routers)
		pod := pick(r, s.Pods.Items)
		p := t.Paths.Items[0]
		p.Prefix, p.NextHop = netip.PrefixFrom(pod.IP, 32), pick(r, s.Nodes.Items).InternalIPs[0]
		p.Neighbor = p.NextHop
		t.Paths.Items = append(t.Paths.Items, p)
		if r.IntN(2) == 0 {
			pod.Node = s.Nodes.Items[0].Name
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // the operator's
		t := pick(r, s.Routers)
		protocol := *pick(r, []snapshot.RouteProtocol{snapshot.RouteStatic, snapshot.RouteBIRD, "ospf"})
		kind := *pick(r, []snapshot.RouteType{snapshot.RouteUnicast, snapshot.RouteUnicast, snapshot.RouteBlackhole})
		t.Routes.Items = append(t.Routes.Items, snapshot.Route{
			Prefix: pick(r, t.Paths.Items).Prefix, Type: kind, Protocol: protocol,
			NextHops: []snapshot.NextHop{{Address: pick(r, s.Nodes.Items).InternalIPs[0]}, {Address: netip.MustParseAddr("192.0.2.1")}},
		})
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // to a node that is gone
		s.Nodes.Items = drop(r, s.Nodes.Items)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		if len(s.CiliumNodes.Items) > 0 {
			s.CiliumNodes.Items = drop(r, s.CiliumNodes.Items)
		}
		if len(s.CalicoBlocks.Items) > 0 {
			s.CalicoBlocks.Items = drop(r, s.CalicoBlocks.Items)
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // ranges that change hands, or have two, or are more
		n := pick(r, s.Nodes.Items)
		other := pick(r, s.Nodes.Items).PodCIDRs
		n.PodCIDRs = slices.Concat(n.PodCIDRs, other)
		if len(s.CiliumNodes.Items) > 0 {
			c := pick(r, s.CiliumNodes.Items)
			c.PodCIDRs, c.Created = *pick(r, [][]netip.Prefix{other, slices.Concat(c.PodCIDRs, other), {netip.MustParsePrefix("2001:db8:1::/64")}}), takenAt.Add(-time.Minute)
		}
		if len(s.CalicoBlocks.Items) > 0 {
			b := *pick(r, s.CalicoBlocks.Items)
			b.Node, b.Created = n.Name, takenAt.Add(-time.Minute)
			if r.IntN(2) == 0 {
				b.CIDR = netip.PrefixFrom(b.CIDR.Addr(), 26)
			}
			s.CalicoBlocks.Items = append(s.CalicoBlocks.Items, b)
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		n := pick(r, s.Nodes.Items)
		n.PodCIDRs = slices.Concat(n.PodCIDRs, []netip.Prefix{netip.MustParsePrefix("2001:db8::/64"), netip.MustParsePrefix("10.99.0.0/24")})
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { pick(r, s.Nodes.Items).Ready = false },
	func(r *rand.Rand, s *snapshot.Snapshot) { pick(r, s.Nodes.Items).UID = "another" },
	func(r *rand.Rand, s *snapshot.Snapshot) {
		pick(r, s.Nodes.Items).Created = takenAt.Add(-2 * time.Second)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // cordoned, and kept from load balancers
		n := pick(r, s.Nodes.Items)
		n.Unschedulable, n.Excluded = true, r.IntN(2) == 0
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // another address
		n := pick(r, s.Nodes.Items)
		n.InternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 1, byte(r.IntN(250))})}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		n := pick(r, s.Nodes.Items)
		n.KubeRouterAddresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 1, byte(r.IntN(4))})}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		n := pick(r, s.Nodes.Items)
		n.Calico.Address = *pick(r, []netip.Prefix{pick(r, s.Nodes.Items).Calico.Address, netip.MustParsePrefix("192.168.7.7/24")})
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		if len(s.CalicoAgents.Items) > 0 {
			*pick(r, s.CalicoAgents.Items) = snapshot.CalicoAgent{Node: pick(r, s.Nodes.Items).Name, Method: *pick(r, []string{"", "interface=eth.*", "can-reach=10.0.0.1"})}
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		if len(s.NodeNetworks) > 0 {
			n := pick(r, s.NodeNetworks)
			n.Interfaces.Items = slices.Concat([]snapshot.Interface{{Name: "eth9", Index: 9, Type: "device", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.7.7/24")}}}, n.Interfaces.Items)
			if a := pick(r, s.CalicoAgents.Items); r.IntN(2) == 0 {
				a.Unknown = []string{"IP"}
			}
			n.BIRD.Read = r.IntN(3) > 0
			pick(r, pick(r, s.NodeNetworks).BIRD.Items).BGPState = "Active"
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // sessions
		pick(r, pick(r, s.Routers).Neighbors.Items).State = "active"
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		t := pick(r, s.Routers)
		t.Neighbors.Items = drop(r, t.Neighbors.Items)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // a node that is no neighbour, and announces nothing
		gone := pick(r, s.Nodes.Items).InternalIPs[0]
		t := pick(r, s.Routers)
		t.Neighbors.Items = slices.DeleteFunc(slices.Clone(t.Neighbors.Items), func(n snapshot.Neighbor) bool { return n.Address == gone })
		t.Paths.Items = slices.DeleteFunc(slices.Clone(t.Paths.Items), func(p snapshot.Path) bool { return p.Neighbor == gone })
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // no pod range is announced
		t := pick(r, s.Routers)
		t.Paths.Items = slices.DeleteFunc(slices.Clone(t.Paths.Items), func(p snapshot.Path) bool { return p.Prefix.Bits() == 24 })
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // the roles of routers
		t := pick(r, s.Routers)
		t.Role = *pick(r, []string{snapshot.RoleSpine, snapshot.RoleSpine, snapshot.RoleRouteServer})
		if r.IntN(2) == 0 {
			t.RIBOnly, t.Routes = true, snapshot.List[snapshot.Route]{}
		}
		if r.IntN(2) == 0 {
			t.Neighbors.Items = t.Neighbors.Items[len(t.Neighbors.Items)-2:]
			t.Paths.Items = t.Paths.Items[len(t.Paths.Items)-2:]
			t.Paths.Items[0].Prefix = netip.MustParsePrefix("10.0.0.0/21")
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // both families
		for i := range s.Routers {
			s.Routers[i].IPv6 = r.IntN(4) > 0
		}
		for i := range s.Nodes.Items {
			n, p := &s.Nodes.Items[i], netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 5: byte(i)}), 64)
			n.PodCIDRs = slices.Concat(n.PodCIDRs, []netip.Prefix{p})
			if len(s.CiliumNodes.Items) > i {
				s.CiliumNodes.Items[i].PodCIDRs = n.PodCIDRs
			}
			for t := range s.Routers {
				if r.IntN(9) > 0 {
					s.Routers[t].Paths.Items = append(s.Routers[t].Paths.Items, snapshot.Path{Prefix: p, NextHop: n.InternalIPs[0], Neighbor: n.InternalIPs[0], Best: true})
				}
			}
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // what was not read
		t := pick(r, s.Routers)
		**pick(r, []*bool{
			&t.Paths.Read, &t.Routes.Read, &t.Neighbors.Read, &s.Pods.Read, &s.CalicoBlocks.Read, &s.EndpointSlices.Read, &s.Accounts.Read, &s.BGPAdvertisements.Read,
		}) = false
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // endpoints
		e := pick(r, s.EndpointSlices.Items)
		e.Ready, e.ReadyNodes = nil, nil
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { s.EndpointSlices.Items = drop(r, s.EndpointSlices.Items) },
	func(r *rand.Rand, s *snapshot.Snapshot) {
		b := pick(r, s.Services.Items)
		b.Local, b.Created = !b.Local, takenAt.Add(-3*time.Second)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // an address without a route, or one of IPv6
		b := pick(r, s.Services.Items)
		b.LoadBalancerIPs = append(slices.Clone(b.LoadBalancerIPs), *pick(r, []netip.Addr{netip.MustParseAddr("100.64.0.250"), netip.MustParseAddr("2001:db8::1"), balancerIP(3)}))
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // advertisements
		b := pick(r, s.BGPAdvertisements.Items)
		switch r.IntN(5) {
		case 0:
			b.Nodes = nil
		case 1:
			b.AggregationLength = 24 + r.IntN(6)
		case 2:
			b.Peers = []string{"a-peer"}
		case 3:
			b.Speaker = snapshot.CiliumBGP
		case 4:
			b.Ranges = append(slices.Clone(b.Ranges), snapshot.AddressRange{First: balancerIP(0), Last: balancerIP(255)})
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // images
		w := pick(r, s.Workloads.Items)
		w.Containers = slices.Clone(w.Containers)
		w.Containers[0].Image = *pick(r, []string{"registry.example/a", "registry.example/a:latest", "registry.example/a:v1", "A:B"})
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		p := pick(r, s.PodImages.Items)
		p.Containers = slices.Clone(p.Containers)
		p.Containers[0].ImageID = *pick(r, []string{"", "registry.example/a@" + imageDigest(9999)})
		p.Created = takenAt.Add(-time.Minute)
		if r.IntN(3) == 0 {
			p.Template = "other"
		}
		if r.IntN(4) == 0 {
			p.OwnerKind = *pick(r, []string{"", "Node", "Job"})
		}
	},
	func(r *rand.Rand, s *snapshot.Snapshot) {
		pick(r, s.Tags.Items).Digest = imageDigest(9998)
	},
	func(r *rand.Rand, s *snapshot.Snapshot) { // permissions
		for i := range s.Accounts.Items {
			if a := &s.Accounts.Items[i]; len(a.Permissions) > 0 {
				a.Permissions = []snapshot.Permission{{Groups: []string{"", "cilium.io"}, Resources: []string{"*"}, Verbs: []string{"get", "list"}}}
			}
		}
	},
}

// damaged is a small cluster, and what becomes of it by random damages in some snapshots.
func damaged(size shape, seed uint64, snapshots int) []snapshot.Snapshot {
	r := rand.New(rand.NewPCG(seed, 0))
	var history []snapshot.Snapshot
	began := size.snapshot()
	for i := range snapshots {
		s := size.snapshot() // another one, which shares nothing
		if i > 0 && r.IntN(4) > 0 {
			s = copied(history[i-1])
		}
		s.Time = began.Time.Add(time.Duration(i) * *pick(r, []time.Duration{time.Second, 4 * time.Second, 15 * time.Second}))
		for range 1 + r.IntN(6) {
			(*pick(r, damages))(r, &s)
		}
		history = append(history, s)
	}
	return history
}

// copied is a copy that shares nothing with a snapshot.
func copied(s snapshot.Snapshot) (c snapshot.Snapshot) {
	text, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		panic(err) // of a snapshot that the test has made
	}
	return c
}

// What the detectors find in small clusters with random damages stays the same to the byte. The
// golden file was written before their look-ups had indexes.
func TestSameFindings(t *testing.T) {
	const golden = "testdata/same-findings.txt"
	declared := []detect.Detector{
		detect.RouteOwnership{}, detect.ServiceRoute{}, detect.NodeAddress{}, detect.Permission{}, detect.ImageDrift{}, detect.ImagePin{},
	}
	observed := []detect.Detector{
		detect.RouteOwnership{Peering: detect.Observed}, detect.ServiceRoute{Peering: detect.Observed}, detect.NodeAddress{Peering: detect.Observed},
		detect.Permission{Peering: detect.Observed}, detect.ImageDrift{Peering: detect.Observed}, detect.ImagePin{},
	}
	var lines []string
	for _, cni := range []cniKind{withCilium, withCalico, withoutCNI} {
		for seed := range uint64(120) {
			size := shape{Seed: seed, CNI: cni, Nodes: 12, Pods: 5, Services: 14, LocalEvery: 10, Routes: 36, Mesh: cni == withCalico}
			history := damaged(size, seed, 1+int(seed%4))
			last := history[len(history)-1]
			found := struct {
				Declared, Observed, Once []detect.Finding
				Gaps                     []detect.Gap
			}{detect.Run(declared, history), detect.Run(observed, history), detect.Run(observed, []snapshot.Snapshot{last}), detect.Unjudged(last)}
			text := must.Get(json.MarshalIndent(found, "", " "))(t)
			name := fmt.Sprintf("%s %d", cni, seed)
			if *full != "" {
				must.NoError(t, os.WriteFile(filepath.Join(*full, name), text, 0o644))
			}
			kinds := map[string]int{}
			for _, f := range slices.Concat(found.Declared, found.Observed, found.Once) {
				kinds[string(f.State)+" "+f.Kind]++
			}
			var counts []string
			for _, kind := range slices.Sorted(maps.Keys(kinds)) {
				counts = append(counts, fmt.Sprintf("%d %s", kinds[kind], kind))
			}
			sum := sha256.Sum256(text)
			lines = append(lines, fmt.Sprintf("%s: %x: %s; %d gaps\n", name, sum[:8], strings.Join(counts, ", "), len(found.Gaps)))
		}
	}
	got := strings.Join(lines, "")
	if *update {
		must.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want := must.Read(t, golden)
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
