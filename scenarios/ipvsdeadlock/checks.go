package ipvsdeadlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/load"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// What the checks read of snapshots: kube-proxies and the nodes' IPVS tables, and for the
// churned Services their endpoints.
var (
	proxies = []snapshot.Source{snapshot.Proxies}
	churned = []snapshot.Source{snapshot.Proxies, snapshot.Services, snapshot.EndpointSlices}
)

// mode asserts that kube-proxy did not fall back to another mode.
func (s *story) mode(ctx context.Context, r *framework.Run) (bool, string, error) {
	mode, err := s.proxy.RunsIn(ctx, labaccess.Lab(r))
	return mode == s.proxy.Mode, fmt.Sprintf("it runs in mode %q", mode), err
}

// syncs asserts that syncs were finished since the load ended, or that none was.
func (s *story) syncs(finished bool) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		l, _, err := s.poll(ctx, r)
		if err != nil {
			return false, "", err
		}
		saw := fmt.Sprintf("%d syncs when the load ended, %d now", s.after.syncs, l.Syncs)
		r.Evidence("syncs", fmt.Sprintf("%s: %s\n%s", kubeproxy.SyncMetric, saw, s.log()))
		if finished {
			return l.Syncs > s.after.syncs, saw, nil
		}
		return l.Syncs == s.after.syncs, saw, nil
	}
}

func (s *story) healthFrozen(_ context.Context, r *framework.Run) (bool, string, error) {
	h := s.seen(r).Health
	return h.Status == http.StatusServiceUnavailable && h.Age() > kubeproxy.HealthTimeout,
		fmt.Sprintf("healthz answers %d, last sync %s ago", h.Status, h.Age()), nil
}

func (s *story) twoStacks(ctx context.Context, r *framework.Run) (bool, string, error) {
	dump, err := s.proxy.Goroutines(ctx, labaccess.Lab(r))
	if err != nil {
		return false, "", err
	}
	r.Evidence("goroutines", dump)
	waiting := kubeproxy.WaitingForIPVS(dump)
	return len(waiting) == 2, fmt.Sprintf("%d goroutines wait for IPVS", len(waiting)), nil
}

func (s *story) lateIsMissing(_ context.Context, r *framework.Run) (bool, string, error) {
	if s.seen(r).Table == nil {
		return false, "", errors.New("the table was not read")
	}
	v := s.virtualServerOf(r, late)
	return !v.Address.IsValid(), textOf(v), nil
}

// idleIsEmpty asserts what ipvsadm showed in the reports: a virtual server without a
// real server, although the Service has a pod.
func (s *story) idleIsEmpty(_ context.Context, r *framework.Run) (bool, string, error) {
	v := s.virtualServerOf(r, idle)
	return v.Address.IsValid() && len(v.Servers) == 0, textOf(v), nil
}

func (s *story) webIsStale(_ context.Context, r *framework.Run) (bool, string, error) {
	v := s.virtualServerOf(r, web)
	servers := weighted(v)
	return len(servers) == 1 && servers[0] != s.app.Serving.IP, textOf(v), nil
}

// served asserts that a Service of the application leads to its pod alone.
func (s *story) served(service string) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		servers := weighted(s.virtualServerOf(r, service))
		return slices.Equal(servers, []netip.Addr{s.app.Serving.IP}), fmt.Sprintf("it leads to %s, not to %s", listOf(servers), s.app.Serving.IP), nil
	}
}

// churnFollows asserts that each churned Service leads to the endpoint that it has.
// While other variants' loads still change it, it may be one of a little before, or
// after: EndpointSlices are made from the Endpoints that kube-proxy reads.
func (s *story) churnFollows(_ context.Context, r *framework.Run) (bool, string, error) {
	if churn.Goes() {
		return s.churnIsServed(r, int(2*detect.DefaultSettle/churn.Every))
	}
	return s.churnIsServed(r, 0)
}

// churnIsServed reports whether each churned Service leads to its endpoint, or to one that
// is no more than so many changes apart.
func (s *story) churnIsServed(r *framework.Run, apart int) (bool, string, error) {
	seen := r.Snapshot()
	if !seen.Services.Read || !seen.EndpointSlices.Read || s.seen(r).Table == nil {
		return false, "", errors.New("the Services, their EndpointSlices or the table were not read")
	}
	var late framework.Mismatches
	found := 0
	for _, service := range seen.Services.Items {
		if !load.IsChurned(service.String()) {
			continue
		}
		found++
		servers := weighted(s.virtualServer(r, service.ClusterIPs[0], 80))
		ready := readyOf(seen, service)
		if len(servers) != 1 || len(ready) != 1 || churn.Apart(servers[0], ready[0]) > apart {
			late.Addf("%s leads to %s, and its endpoint is %s", service.Name, listOf(servers), listOf(ready))
		}
	}
	if found != churn.Services {
		late.Addf("%d of %d churned Services exist", found, churn.Services)
	}
	return late.Result()
}

// readyOf are the endpoints of a Service that are to get connections.
func readyOf(s snapshot.Snapshot, service snapshot.Service) []netip.Addr {
	var ready []netip.Addr
	for _, slice := range s.EndpointSlices.Items {
		if slice.Namespace == service.Namespace && slice.Service == service.Name {
			ready = append(ready, slice.Ready...)
		}
	}
	return ready
}

// seen is kube-proxy on the node in the newest snapshot.
func (s *story) seen(r *framework.Run) snapshot.Proxy {
	for _, p := range r.Snapshot().Proxies {
		if p.Node == s.node {
			return p
		}
	}
	return snapshot.Proxy{}
}

// virtualServer is the kernel's entry for a cluster IP on the node, in the newest
// snapshot. It has no address if there is none.
func (s *story) virtualServer(r *framework.Run, vip netip.Addr, port uint16) snapshot.VirtualServer {
	for _, v := range s.seen(r).Table {
		if v.Protocol == "TCP" && v.Address == netip.AddrPortFrom(vip, port) {
			return v
		}
	}
	return snapshot.VirtualServer{}
}

// virtualServerOf is the virtual server of one of the application's Services.
func (s *story) virtualServerOf(r *framework.Run, service string) snapshot.VirtualServer {
	return s.virtualServer(r, vip(s.node, service), wire.DefaultPort)
}

func weighted(v snapshot.VirtualServer) []netip.Addr {
	var addresses []netip.Addr
	for _, server := range v.Servers {
		if server.Weight > 0 {
			addresses = append(addresses, server.Address.Addr())
		}
	}
	return addresses
}

func textOf(v snapshot.VirtualServer) string {
	if !v.Address.IsValid() {
		return "IPVS has no virtual server for it"
	}
	var servers []string
	for _, server := range v.Servers {
		servers = append(servers, fmt.Sprintf("%s (weight %d)", server.Address, server.Weight))
	}
	return fmt.Sprintf("the virtual server %s has the real servers %s", v.Address, cmp.Or(strings.Join(servers, ", "), "none"))
}

func listOf(addresses []netip.Addr) string {
	var all []string
	for _, a := range addresses {
		all = append(all, a.String())
	}
	return cmp.Or(strings.Join(all, ", "), "no endpoint")
}
