//go:build lab

package kindlab_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// A dual lab has both families inside. The machine has no IPv6 address, route or forwarding of it, and no IPv6
// packet leaves it.
func TestDual(t *testing.T) {
	dual := small
	dual.Name, dual.Dual = "kindlab-dual", true
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	docker, catalogue := dockerAndImages(ctx, t, kindlab.ImagesOf(dual))
	forwarding := must.Read(t, "/proc/sys/net/ipv6/conf/all/forwarding")
	lab := must.Get(up(ctx, t, docker, dual, kindlab.Options{Images: catalogue}))(t)
	must.Equal(t, "the machine's forwarding", string(forwarding), string(must.Read(t, "/proc/sys/net/ipv6/conf/all/forwarding")))
	within := topology.IPv6.Prefix(dual.Networks[0].Subnet).Addr().String()[:len("fd5c:3f1e:a2d7:")]
	for _, a := range must.Get(netlink.AddrList(nil, netlink.FAMILY_V6))(t) {
		if strings.HasPrefix(a.IP.String(), within) {
			t.Errorf("the machine has %s", a)
		}
	}
	for _, r := range must.Get(netlink.RouteList(nil, netlink.FAMILY_V6))(t) {
		if r.Dst != nil && strings.HasPrefix(r.Dst.IP.String(), within) {
			t.Errorf("the machine has a route to %s", r.Dst)
		}
	}
	must.NoError(t, await.Until(ctx, "both addresses of the nodes", 100*time.Millisecond, 30*time.Second,
		func(ctx context.Context) (bool, string, error) {
			var nodes corev1.NodeList
			err := lab.Clusters[0].Client.Resources().List(ctx, &nodes)
			return err == nil && !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool {
				return len(n.Spec.PodCIDRs) != 2 || len(slices.DeleteFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
					return a.Type != corev1.NodeInternalIP
				})) != 2
			}), "a node lacks one", err
		}))
	node, stranger := topology.IPv6.Addr(dual.Clusters[0].Nodes[1].Links[0].Address).String(), "2001:db8::1"
	if out, err := lab.Host("outside").Exec(ctx, "ping", "-6", "-c1", "-W5", node); err != nil {
		t.Errorf("the host does not reach a node by IPv6: %s: %v", out, err)
	}
	if ranges := must.Get(lab.Clusters[0].PodRanges(ctx, "second"))(t); len(ranges) != 2 || ranges[1] != topology.IPv6.Prefix(ranges[0]) {
		t.Errorf("the second node has %v", ranges)
	}
	for _, from := range []string{"outside", "second"} {
		must.Fail(t, must.Err(lab.Host(from).Exec(ctx, "ping", "-6", "-c1", "-W2", stranger)), from)
	}
	// The machine is not reached by a link-local address either.
	bridge := must.Get(netlink.RouteGet(dual.Networks[1].Bridge().AsSlice()))(t)
	for _, l := range must.Get(netlink.LinkList())(t) {
		if l.Type() != "bridge" || len(bridge) == 0 {
			continue
		}
		for _, a := range must.Get(netlink.AddrList(l, netlink.FAMILY_V6))(t) {
			must.Fail(t, must.Err(lab.Host("outside").Exec(ctx, "ping", "-6", "-c1", "-W1", a.IP.String()+"%eth0")))
		}
	}
	must.NoError(t, lab.Node("second").Stop(ctx))
	must.NoError(t, lab.Node("second").Start(ctx))
	if out, err := lab.Host("outside").Exec(ctx, "ping", "-6", "-c1", "-W5", node); err != nil {
		t.Errorf("the host does not reach a node whose power came back: %s: %v", out, err)
	}
}
