package audit

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func detailed(f detect.Finding, read snapshot.Snapshot, by Reached) Finding {
	r := Result{Findings: []Finding{{Finding: f}}}
	r.Detail(read, by)
	return r.Findings[0]
}

func TestLayers(t *testing.T) {
	p := netip.MustParsePrefix("10.5.115.0/24")
	read := cluster(true)
	read.Services.Items = []snapshot.Service{{Namespace: "shop", Name: "web", LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}}
	read.EndpointSlices.Items = []snapshot.EndpointSlice{{Namespace: "shop", Service: "web", Ready: []netip.Addr{netip.MustParseAddr("10.5.112.9")}}}
	read.BGPAdvertisements.Items = []snapshot.BGPAdvertisement{{Name: "all", Ranges: []snapshot.AddressRange{{First: netip.MustParseAddr("192.0.2.0"), Last: netip.MustParseAddr("192.0.2.9")}}, Nodes: []string{"master1"}}}
	unread := read
	unread.Routers = []snapshot.Router{{Name: "tor1", Neighbors: read.Routers[0].Neighbors}}
	ribOnly := read
	ribOnly.Routers = []snapshot.Router{read.Routers[0]}
	ribOnly.Routers[0].RIBOnly = true
	for _, test := range []struct {
		name string
		f    detect.Finding
		read snapshot.Snapshot
		want []string
	}{
		{"a range that is not announced", detect.Finding{Detector: "route-ownership", Object: detect.Prefix(p), Owner: "master2", Routers: []string{"tor1"}}, read,
			[]string{"agent, CiliumNode.spec.ipam.podCIDRs: master2", "RIB, tor1: no route", "FIB, tor1: no route"}},
		{"a router that was not read says nothing", detect.Finding{Detector: "route-ownership", Object: detect.Prefix(p), Routers: []string{"tor1"}}, unread,
			[]string{"agent, CiliumNode.spec.ipam.podCIDRs: master2"}},
		{"a router whose FIB cannot be read", detect.Finding{Detector: "route-ownership", Object: detect.Prefix(p), Routers: []string{"tor1"}}, ribOnly,
			[]string{"agent, CiliumNode.spec.ipam.podCIDRs: master2", "RIB, tor1: no route"}},
		{"a range that a router has", detect.Finding{Detector: "route-ownership", Object: detect.Prefix(netip.MustParsePrefix("10.5.112.0/24")), Routers: []string{"tor1"}}, read,
			[]string{"API, Node.spec.podCIDRs: master1", "agent, CiliumNode.spec.ipam.podCIDRs: master1", "RIB, tor1: next hop 10.4.94.31 (master1)", "FIB, tor1: no route"}},
		{"an address of a Service", detect.Finding{Detector: "service-route", Object: detect.Prefix(netip.MustParsePrefix("192.0.2.7/32")), Routers: []string{"tor1"}}, read,
			[]string{"API, BGPAdvertisement: announced by master1", "API, EndpointSlice: 10.5.112.9", "RIB, tor1: no route", "FIB, tor1: no route"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			says := func(s snapshot.Statement) string { return string(s.Layer) + ", " + s.Where + ": " + s.Says }
			must.Equal(t, "", test.want, each.Of(detailed(test.f, test.read, Reached{}).Layers, says))
		})
	}
}

// Statements about one object are limited, and the omitted statements are counted.
func TestMostLayers(t *testing.T) {
	read := cluster(false)
	for range 3 * mostLayers {
		read.PodImages.Items = append(read.PodImages.Items, snapshot.PodImages{
			Namespace: "kube-system", OwnerKind: "DaemonSet", OwnerName: "agent", Containers: []snapshot.RunningContainer{{Container: snapshot.Container{Name: "agent"}}},
		})
	}
	f := detailed(detect.Finding{Detector: "image-pin", Object: detect.Named("DaemonSet kube-system/agent, container agent")}, read, Reached{})
	must.Equal(t, "statements, and more", [...]int{mostLayers, 2 * mostLayers}, [...]int{len(f.Layers), f.MoreLayers})
}

func TestAgain(t *testing.T) {
	read := cluster(true)
	read.Services.Items = []snapshot.Service{{Namespace: "shop", Name: "web", LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}}
	for _, test := range []struct {
		name string
		f    detect.Finding
		by   Reached
		want []string
	}{
		{"a range that is not announced",
			detect.Finding{Detector: "route-ownership", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", Routers: []string{"tor1"}, Pods: []string{"a/b"}},
			Reached{Kubectl: []string{"--context=c 1"}, Routers: []bgprouter.Declared{{Name: "tor1", Kind: bgprouter.BIRD, Command: []string{"docker", "exec", "tor1"}}}},
			[]string{
				"kubectl '--context=c 1' get ciliumnodes.cilium.io/master2 '--output=jsonpath={.spec.ipam.podCIDRs}'",
				"kubectl '--context=c 1' get pods --all-namespaces --output=wide --field-selector=spec.nodeName=master2",
				"docker exec tor1 birdc -r 'show route 10.5.115.0/24 all'", "docker exec tor1 ip -4 route show to exact 10.5.115.0/24",
			}},
		{"a range that nobody holds, on a router that is not known",
			detect.Finding{Detector: "route-ownership", Object: detect.Prefix(netip.MustParsePrefix("10.5.120.0/24")), Announcer: "master1", Routers: []string{"tor1"}}, Reached{},
			[]string{
				"kubectl get ciliumnodes.cilium.io --output=custom-columns=NAME:.metadata.name,PODCIDRS:.spec.ipam.podCIDRs",
				"kubectl get node/master1 --output=wide",
				"tor1: vtysh -c 'show bgp ipv4 unicast 10.5.120.0/24'", "tor1: birdc -r 'show route 10.5.120.0/24 all'", "tor1: ip -4 route show to exact 10.5.120.0/24",
			}},
		{"an address of a Service",
			detect.Finding{Detector: "service-route", Object: detect.Prefix(netip.MustParsePrefix("192.0.2.7/32"))}, Reached{},
			[]string{
				"kubectl get service/web --namespace=shop --output=wide",
				"kubectl get endpointslices --namespace=shop --selector=kubernetes.io/service-name=web",
			}},
		{"an address of a node", detect.Finding{Detector: "node-address", Object: detect.Named("master1")}, Reached{},
			[]string{
				"kubectl get node/master1 '--output=jsonpath={.status.addresses}'", "kubectl get node/master1 '--output=jsonpath={.metadata.annotations}'",
				"kubectl get ciliumnodes.cilium.io/master1 '--output=jsonpath={.spec.addresses}'",
			}},
		{"a right", detect.Finding{Detector: "permission", Object: detect.Named("ServiceAccount kube-system/cilium, example/cilium:v1.18.4"), Pods: []string{"kube-system/cilium-1"}}, Reached{},
			[]string{
				"kubectl auth can-i --list --as=system:serviceaccount:kube-system:cilium",
				"kubectl get pod/cilium-1 --namespace=kube-system '--output=custom-columns=NODE:.spec.nodeName,IMAGE:.spec.containers[*].image,RUNS:.status.containerStatuses[*].imageID'",
			}},
		{"an image", detect.Finding{Detector: "image-pin", Object: detect.Named("DaemonSet kube-system/kube-router, container kube-router")}, Reached{},
			[]string{"kubectl get daemonset/kube-router --namespace=kube-system '--output=custom-columns=IMAGE:.spec.template.spec.containers[*].image,PULLED:.spec.template.spec.containers[*].imagePullPolicy'"}},
		{"a key", detect.Finding{Detector: "config-drift", Object: detect.Named("ConfigMap kube-system/cilium-config, a.b")}, Reached{},
			[]string{`kubectl get configmap/cilium-config --namespace=kube-system '--output=jsonpath={.data.a\.b}'`}},
		{"a name that a shell would run", detect.Finding{Detector: "node-address", Object: detect.Named("-o'$(id);")}, Reached{},
			[]string{
				`kubectl get 'node/-o'"'"'$(id);' '--output=jsonpath={.status.addresses}'`, `kubectl get 'node/-o'"'"'$(id);' '--output=jsonpath={.metadata.annotations}'`,
				`kubectl get 'ciliumnodes.cilium.io/-o'"'"'$(id);' '--output=jsonpath={.spec.addresses}'`,
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			says := func(c Command) string { return strings.TrimPrefix(c.On+": "+c.Run, ": ") }
			must.Equal(t, "", test.want, each.Of(detailed(test.f, read, test.by).Again, says))
		})
	}
}

func TestEveryDetectorIsShownAgain(t *testing.T) {
	for _, d := range detectors {
		must.Equal(t, d.Name(), true, shows[d.Name()] != nil)
	}
}
