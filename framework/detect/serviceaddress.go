package detect

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Kinds of the findings of ServiceAddress.
const (
	// TakenAddress is active: an address of a Service was given to another one.
	TakenAddress = "taken-address"
	// SharedAddress is active: two Services have an address and a port of it together.
	SharedAddress = "shared-address"
	// FullPool is latent: with the next start of its controller MetalLB may give addresses of a pool to other
	// Services, because some wait for one.
	FullPool = "full-pool"
)

// ServiceAddress finds addresses of Services of type LoadBalancer that their allocator has given to two Services
// (metallb#1774), or taken from one Service and given to another one (metallb#2443), and clusters to which that may
// happen. A Service whose type, requests and pool are as they were when it had the address, and that was not made
// anew, has not given it back. The earlier snapshots of the history say who had it; without them, only what the
// Services ask for does: a newer Service has what an older one asks for, and does not ask for it itself.
//
// Allocators are MetalLB, which notes the pool on the Service, and Cilium, whose classes say so. Others are not judged:
// klipper of k3s gives the nodes' addresses to all Services, and clouds and kube-vip share them by design. Where
// Services share an address by a sharing key, their ports differ.
type ServiceAddress struct{}

// Name implements Detector.
func (ServiceAddress) Name() string { return "service-address" }

// Reads implements Detector.
func (ServiceAddress) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Services, snapshot.AddressPools, snapshot.RunningImages}
}

// Detect implements Detector. Findings are in order of the Services that have the addresses, and of the pools.
func (ServiceAddress) Detect(history []snapshot.Snapshot, _ *Index) (findings []Finding) {
	now := history[len(history)-1]
	lost, holders := lostAddresses(history), map[netip.Addr][]snapshot.Service{}
	for _, of := range now.Services.Items {
		for _, address := range of.LoadBalancerIPs {
			if allocator(of) == "" {
				continue
			}
			f := Finding{State: Active, Object: Prefix(netip.PrefixFrom(address, address.BitLen()))}
			if with, port := sharer(holders[address], of); with != "" {
				f.Kind = SharedAddress
				f.Says = fmt.Sprintf("%s and %s have %s together, and %s of it: a node gives its packets to one of them.", with, of, address, port)
				findings = append(findings, f)
			}
			if from := lost[address]; from.to(of, address) {
				f.Kind = TakenAddress
				f.Says = fmt.Sprintf("%s has %s, which %s %s: clients of %[3]s reach %[1]s.", of, address, from, from.how)
				findings = append(findings, f)
			}
			holders[address] = append(holders[address], of)
		}
	}
	return append(findings, fullPools(now)...)
}

// loss is a Service without an address that it had in an earlier snapshot, or has only asked for; and how that is known.
type loss struct {
	snapshot.Service
	had *snapshot.Snapshot
	how string
}

// to reports whether the address was given to another Service, which was there before as it is now, without the
// address, and does not ask for it.
func (l loss) to(other snapshot.Service, address netip.Addr) bool {
	switch {
	case l.Name == "" || l.Class != other.Class || slices.Contains(other.Wants, address):
		return false
	case l.had != nil:
		return slices.ContainsFunc(l.had.Services.Items, func(s snapshot.Service) bool {
			return s.Stands(other) && !slices.Contains(s.LoadBalancerIPs, address)
		})
	}
	return l.Created.Before(other.Created)
}

// allocator is who gives a Service its address, as far as the Service says that.
func allocator(s snapshot.Service) string {
	switch {
	case s.MetalLBPool != "":
		return "MetalLB"
	case s.Class == "io.cilium/bgp-control-plane", s.Class == "io.cilium/l2-announcer":
		return "Cilium"
	}
	return ""
}

// sharer is one of some Services with an address that has a port of it together with another one.
func sharer(among []snapshot.Service, of snapshot.Service) (with, port string) {
	for _, s := range among {
		for _, p := range s.Ports {
			if allocator(s) == allocator(of) && slices.ContainsFunc(of.Ports, func(q snapshot.ServicePort) bool { return q.Port == p.Port && q.Protocol == p.Protocol }) {
				return s.String(), fmt.Sprintf("port %d/%s", p.Port, p.Protocol)
			}
		}
	}
	return "", ""
}

// lostAddresses are the addresses that Services had, or ask for, and do not have.
func lostAddresses(history []snapshot.Snapshot) map[netip.Addr]loss {
	now, lost, services := history[len(history)-1], map[netip.Addr]loss{}, map[string]snapshot.Service{}
	for _, s := range now.Services.Items {
		services[s.String()] = s
		for _, a := range s.Wants {
			if !slices.Contains(s.LoadBalancerIPs, a) {
				lost[a] = loss{Service: s, how: "asks for and does not have, though it is the older Service"}
			}
		}
	}
	for i, earlier := range history[:len(history)-1] {
		for _, e := range earlier.Services.Items {
			s, there := services[e.String()]
			for _, a := range e.LoadBalancerIPs {
				if there && allocator(e) != "" && s.Stands(e) && !slices.Contains(s.LoadBalancerIPs, a) {
					lost[a] = loss{s, &history[i], fmt.Sprintf("had at %s UTC, and has not given back", earlier.Time.UTC().Format(time.TimeOnly))}
				}
			}
		}
	}
	return lost
}

// givesAway reports whether MetalLB's controller of a version processes Services in no order after its start: up to
// 0.14.2, which processes those first that have an address (#2004; service_controller_reload.go).
func givesAway(version string) bool {
	v := "v" + strings.TrimPrefix(version, "v")
	return semver.Compare(v, "v0.13.0") >= 0 && semver.Compare(v, "v0.14.2") < 0
}

// allocatedWithin is how long a Service may wait for its address because nobody has come to it yet.
const allocatedWithin = 5 * time.Second

func fullPools(now snapshot.Snapshot) (findings []Finding) {
	version := ""
	for _, p := range now.PodImages.Items {
		for _, c := range p.Containers {
			ref, err := snapshot.ParseReference(c.Image)
			if err == nil && strings.Contains(ref.Name, "metallb") && strings.HasSuffix(path.Base(ref.Name), "controller") && givesAway(ref.Tag) {
				version = strings.TrimPrefix(ref.Tag, "v")
			}
		}
	}
	if version == "" {
		return nil
	}
	for _, pool := range now.AddressPools.Items {
		used := map[netip.Addr]bool{}
		for _, s := range now.Services.Items {
			for _, a := range s.LoadBalancerIPs {
				used[a] = pool.Contains(a)
			}
		}
		var waiting []string
		for _, s := range now.Services.Items {
			free := s.LoadBalancer && len(s.LoadBalancerIPs) == 0 && s.Class == "" && len(s.ClusterIPs) > 0 && s.ClusterIPs[0].Is4()
			asks := s.WantsPool == pool.Name || s.WantsPool == "" && pool.Any
			if len(s.Wants) > 0 {
				asks = used[s.Wants[0]]
			}
			if free && asks && now.Age(s.Created) >= allocatedWithin {
				waiting = append(waiting, s.String())
			}
		}
		if len(waiting) > 0 && full(pool, used) {
			findings = append(findings, Finding{
				Kind: FullPool, State: Latent, Object: Named("IPAddressPool " + pool.Name),
				Says: fmt.Sprintf("Each address of the pool is a Service's, and %d %s for one: %s. With the next start of its controller MetalLB %s "+
					"may give them addresses that others have: it processes Services in no order.",
					len(waiting), plural(len(waiting), "waits", "wait"), and(few(waiting)), version),
			})
		}
	}
	return findings
}

// full reports whether each address of IPv4 of a pool is in use. A pool without one is not.
func full(pool snapshot.AddressPool, used map[netip.Addr]bool) bool {
	there := false
	for _, r := range pool.Ranges {
		for a := r.First; a.Is4() && r.Contains(a); a = a.Next() {
			if last := a.As4()[3]; pool.Avoids && (last == 0 || last == 255) {
				continue
			}
			if there = true; !used[a] {
				return false
			}
		}
	}
	return there
}
