package detect

import (
	"fmt"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
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
// happen. An address was taken if an earlier snapshot has it on a Service that was not made anew, and if the requests
// of both Services and all pools are as they were. Without such a snapshot, it was taken from a Service that has no
// address and asks for it, if a newer Service has it without asking.
//
// Allocators are MetalLB, which notes the pool on the Service from 0.13.8 on, and Cilium, whose classes say so. Under
// earlier versions of MetalLB Services without a class are its own if their address is in one of its pools. Others are not judged:
// klipper of k3s gives the nodes' addresses to all Services, and clouds and kube-vip share them by design. Where
// Services share an address by a sharing key, their ports differ.
type ServiceAddress struct{}

func (ServiceAddress) Name() string { return "service-address" }

func (ServiceAddress) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Services, snapshot.AddressPools, snapshot.RunningImages}
}

// Detect implements Detector. Findings are in order of the Services that have the addresses, and of the pools.
func (ServiceAddress) Detect(history []snapshot.Snapshot, _ *Index) (findings []Finding) {
	history = each.Of(history, noted)
	now := history[len(history)-1]
	lost, holders := lostAddresses(history), map[netip.Addr][]snapshot.Service{}
	for _, service := range now.Services.Items {
		for _, address := range service.LoadBalancerIPs {
			if allocator(service) == "" {
				continue
			}
			f := Finding{State: Active, Object: Prefix(netip.PrefixFrom(address, address.BitLen()))}
			if with, port := sharer(holders[address], service); with != "" {
				f.Kind = SharedAddress
				f.Says = fmt.Sprintf("%s and %s have %s together, and %s of it: a node gives its packets to one of them.", with, service, address, port)
				findings = append(findings, f)
			}
			if i := slices.IndexFunc(lost[address], func(l loss) bool { return l.to(service, address) }); i >= 0 {
				from := lost[address][i]
				f.Kind = TakenAddress
				f.Says = fmt.Sprintf("%s has %s, which %s asks for, the older Service, which has no address: "+
					"clients who use %[2]s for %[3]s reach %[1]s.", service, address, from)
				if from.had != nil {
					f.Says = fmt.Sprintf("%s has %s, which %s had at %s UTC, and has not given back: clients of %[3]s reach %[1]s.",
						service, address, from, from.had.Time.UTC().Format(time.TimeOnly))
				}
				findings = append(findings, f)
			}
			holders[address] = append(holders[address], service)
		}
	}
	return append(findings, fullPools(now)...)
}

// loss is a Service without an address that it had in an earlier snapshot, or, if had is nil, that it asks for.
type loss struct {
	snapshot.Service
	had *snapshot.Snapshot
}

// to reports whether the address was given to another Service. In the earlier snapshot that Service was as it is now,
// but without the address, and it does not ask for it.
func (l loss) to(other snapshot.Service, address netip.Addr) bool {
	switch {
	case l.Class != other.Class || slices.Contains(other.Wants, address):
		return false
	case l.had == nil:
		return l.Created.Before(other.Created)
	}
	return slices.ContainsFunc(l.had.Services.Items, func(s snapshot.Service) bool {
		return s.Stands(other) && !slices.Contains(s.LoadBalancerIPs, address)
	})
}

// noted is a snapshot whose Services name their pool also where MetalLB does not: before 0.13.8
// (ip-allocated-from-pool in controller/service.go).
func noted(s snapshot.Snapshot) snapshot.Snapshot {
	if v := controllerRelease(s); v == "" || semver.Compare("v"+v, "v0.13.8") >= 0 {
		return s
	}
	s.Services.Items = each.Of(s.Services.Items, func(service snapshot.Service) snapshot.Service {
		for _, pool := range s.AddressPools.Items {
			if service.Class == "" && slices.ContainsFunc(service.LoadBalancerIPs, pool.Contains) {
				service.MetalLBPool = pool.Name
			}
		}
		return service
	})
	return s
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

// sharer is the one of some Services with an address that has the same port of it as another Service.
func sharer(among []snapshot.Service, service snapshot.Service) (with, port string) {
	for _, s := range among {
		for _, p := range s.Ports {
			same := func(q snapshot.ServicePort) bool { return q.Port == p.Port && q.Protocol == p.Protocol }
			if allocator(s) == allocator(service) && slices.ContainsFunc(service.Ports, same) {
				return s.String(), fmt.Sprintf("port %d/%s", p.Port, p.Protocol)
			}
		}
	}
	return "", ""
}

// lostAddresses are the addresses that Services had and no longer have, while all pools are as they were, and the
// addresses that Services without any address ask for.
func lostAddresses(history []snapshot.Snapshot) map[netip.Addr][]loss {
	now, lost, services := history[len(history)-1], map[netip.Addr][]loss{}, map[string]snapshot.Service{}
	for _, s := range now.Services.Items {
		services[s.String()] = s
		for _, a := range s.Wants {
			if s.Unserved {
				lost[a] = append(lost[a], loss{Service: s})
			}
		}
	}
	for i, earlier := range history[:len(history)-1] {
		if !reflect.DeepEqual(earlier.AddressPools.Items, now.AddressPools.Items) {
			continue
		}
		for _, e := range earlier.Services.Items {
			s, there := services[e.String()]
			for _, a := range e.LoadBalancerIPs {
				if there && allocator(e) != "" && s.Stands(e) && !slices.Contains(s.LoadBalancerIPs, a) {
					lost[a] = append(lost[a], loss{s, &history[i]})
				}
			}
		}
	}
	return lost
}

// metalLBRelease is the version of MetalLB that a tag names, such as 0.14.5. It is empty for other tags: a
// distribution's version may have later fixes, and a short tag moves.
func metalLBRelease(tag string) string {
	v := "v" + strings.TrimPrefix(tag, "v")
	if semver.Canonical(v) != v || semver.Prerelease(v) != "" || semver.Major(v) != "v0" {
		return ""
	}
	return v[1:]
}

// controllerRelease is the version of MetalLB's controller that runs, the lowest of several; empty if it is not known.
func controllerRelease(s snapshot.Snapshot) (version string) {
	for _, p := range s.PodImages.Items {
		for _, c := range p.Containers {
			if !strings.Contains(c.Image, "metallb") {
				continue
			}
			ref, err := snapshot.ParseReference(c.Image)
			if v := metalLBRelease(ref.Tag); err == nil && v != "" && strings.Contains(ref.Name, "metallb") &&
				strings.HasSuffix(path.Base(ref.Name), "controller") && (version == "" || semver.Compare("v"+v, "v"+version) < 0) {
				version = v
			}
		}
	}
	return version
}

// givesAway reports whether MetalLB's controller of a version processes Services in no order after its start. From
// 0.14.2 on it begins with Services that have an address (#2004; service_controller_reload.go).
func givesAway(version string) bool {
	return semver.Compare("v"+version, "v0.13.0") >= 0 && semver.Compare("v"+version, "v0.14.2") < 0
}

// allocatedWithin is how long a Service may wait for its address because nobody has come to it yet.
const allocatedWithin = 5 * time.Second

// fullPools finds the full pools, if Services that take any address wait and no pool has an address for them.
func fullPools(now snapshot.Snapshot) (findings []Finding) {
	version := controllerRelease(now)
	used, waiting, serves := map[netip.Addr]bool{}, []string(nil), false
	for _, s := range now.Services.Items {
		// A controller may be for Services of a class alone.
		serves = serves || s.MetalLBPool != "" && s.Class == ""
		for _, a := range s.LoadBalancerIPs {
			used[a] = true
		}
		if s.Unserved && s.TakesAny && s.Class == "" && now.Age(s.Created) >= allocatedWithin {
			waiting = append(waiting, s.String())
		}
	}
	if !givesAway(version) || !serves || len(waiting) == 0 {
		return nil
	}
	for _, pool := range now.AddressPools.Items {
		switch there, free := addresses(pool, used); {
		case !pool.Any || !there:
		case free:
			return nil
		default:
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

// addresses reports whether a pool has addresses of IPv4, and whether one of them is free.
func addresses(pool snapshot.AddressPool, used map[netip.Addr]bool) (there, free bool) {
	for _, r := range pool.Ranges {
		for a := r.First; a.Is4() && r.Contains(a); a = a.Next() {
			if last := a.As4()[3]; pool.Avoids && (last == 0 || last == 255) {
				continue
			}
			if there = true; !used[a] {
				return true, true
			}
		}
	}
	return there, false
}
