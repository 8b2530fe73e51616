package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

type judgement struct {
	findings []string
	// notJudged has a part of each sentence of Result.NotJudged.
	notJudged []string
	open      bool
}

// edit replaces a text in the files of a case, or deletes its lines if new is empty. first: only the first time.
type edit struct {
	old, new string
	first    bool
}

// fault is the same cluster with a real fault.
type fault struct {
	name  string
	edits []edit
	judgement
}

const (
	noPods  = "no node announces a pod range of this cluster to it"
	noIPv6  = "its routes of IPv6 were not read"
	keptIn  = "no CiliumBGPAdvertisement of the node's peers is of that range"
	rejects = "it accepts fewer prefixes of the node than it gets"
)

// Realistic clusters lead to no false alarm, and each of them with a fault leads to a finding. The folders have the
// objects of the API server, and the output of routers.
func TestFalseAlarms(t *testing.T) {
	spine := edit{old: "- name: spine1", new: "- name: spine1\n  role: spine"}
	lost := func(prefix string) []edit { return []edit{{old: "prefix: " + prefix}} }
	for _, c := range []struct {
		name string // the folder
		// ahead says how far the clocks of the API server and the routers are ahead of this machine's clock.
		ahead []time.Duration
		judgement
		faults []fault
	}{
		{name: "calico-blocks", faults: []fault{
			{"worker2 announces another prefix", []edit{{old: "prefix: 10.244.235.128/26", new: "prefix: 203.0.113.0/26"}}, judgement{findings: []string{"active unannounced 10.244.235.128/26"}}},
		}},
		{name: "calico-pools", judgement: judgement{notJudged: []string{"IPPool storage is not exported by BGP"}}, faults: []fault{
			{"the pool is to be exported", []edit{{old: "disableBGPExport: true", new: "disableBGPExport: false"}}, judgement{findings: []string{"active unannounced 10.50.3.0/26", "active unannounced 10.50.7.64/26"}}},
			{"worker2's block is lost", lost("10.244.235.128/26"), judgement{findings: []string{"active unannounced 10.244.235.128/26"}, notJudged: []string{"IPPool storage"}}},
			{"the pool is to be exported, and a filter may keep it back",
				[]edit{{old: "disableBGPExport: true", new: "disableBGPExport: false"}, {old: "asNumber: 64512}", new: "asNumber: 64512, filters: [storage]}"}}, judgement{notJudged: []string{"it has a range of the node of another pool"}, open: true}},
		}},
		{name: "calico-borrowed", faults: []fault{
			{"worker2 announces an address that worker1 uses", []edit{{old: "prefix: 10.244.189.66/32", new: "prefix: 10.244.189.65/32"}}, judgement{findings: []string{"latent wrong-announcer 10.244.189.65/32"}}},
		}},
		{name: "calico-service-ips", faults: []fault{
			{"no node announces the range", lost("192.0.2.0/24"), judgement{findings: []string{"active no-route 192.0.2.1/32"}}},
		}},
		{name: "dual-stack", judgement: judgement{notJudged: []string{noIPv6}, open: true}, faults: []fault{
			{"worker2's range is lost", lost("10.244.2.0/24"), judgement{findings: []string{"active unannounced 10.244.2.0/24"}, notJudged: []string{noIPv6}, open: true}},
			{"IPv6 is read, and no node announces it", []edit{{old: "- name: tor1", new: "- name: tor1\n  ipv6: true"}}, judgement{notJudged: []string{"no node announces a pod range of IPv6 of this cluster to it"}, open: true}},
			{"worker2 has no range but one of IPv6", []edit{{old: "podCIDR: 10.244.2.0/24, podCIDRs: [10.244.2.0/24, 2001", new: "podCIDR: '2001:db8:244:2::/64', podCIDRs: [2001"}, {old: "10.244.2.7", new: "2001:db8:244:2::7"}}, judgement{notJudged: []string{noIPv6}, open: true}},
		}},
		{name: "spine-aggregate", judgement: judgement{notJudged: []string{"spine1 has no route to pod ranges of worker1 and worker2, and is not judged by that: " + noPods}},
			faults: []fault{
				{"the ToR has lost worker2's range", lost("10.0.2.0/24"), judgement{findings: []string{"active unannounced 10.0.2.0/24"}, notJudged: []string{"spine1 has no route"}}},
				{"the spine is declared", []edit{spine}, judgement{}},
				{"the spine is declared, and has lost the aggregate", []edit{spine, {old: "prefix: 10.0.0.0/16"}}, judgement{notJudged: []string{"it is a spine, and no aggregate"}, open: true}},
				{"the spine is declared, and its aggregate is one from above",
					[]edit{spine, {old: "{prefix: 10.0.0.0/16, next_hop: 10.9.0.2, neighbor: 10.9.0.2, as_path: [64513]", new: "{prefix: 10.0.0.0/8, next_hop: 10.9.0.6, neighbor: 10.9.0.6, as_path: [64514]"}},
					judgement{notJudged: []string{"it is a spine, and neither AS path nor next hop"}, open: true}},
			}},
		{name: "second-cluster", faults: []fault{
			{"worker2's range is lost", lost("10.0.2.0/24"), judgement{findings: []string{"active unannounced 10.0.2.0/24"}}},
			{"the other cluster has it", append(lost("10.0.2.0/24"), edit{old: "10.128.2.0/24", new: "10.0.2.0/24"}), judgement{findings: []string{"latent absent-node 10.0.2.0/24"}}},
		}},
		{name: "cilium-multi-pool", judgement: judgement{notJudged: []string{keptIn}}, faults: []fault{
			{"the pool is to be announced", []edit{{old: "advertise: inside", new: "advertise: bgp"}}, judgement{findings: []string{"active unannounced 10.20.0.0/27", "active unannounced 10.20.0.32/27"}}},
			{"worker2's range is lost", lost("10.10.0.32/27"), judgement{findings: []string{"active unannounced 10.10.0.32/27"}, notJudged: []string{keptIn}}},
		}},
		{name: "cilium-services-only", judgement: judgement{notJudged: []string{keptIn}}, faults: []fault{
			{"the Service is lost", lost("192.0.2.1/32"), judgement{findings: []string{"active no-route 192.0.2.1/32"}, notJudged: []string{keptIn}}},
			{"pods are to be announced, to a router that may be that one",
				[]edit{{old: "    - advertisementType: Service", new: "    - {advertisementType: PodCIDR}\n    - advertisementType: Service"}}, judgement{notJudged: []string{noPods}, open: true}},
		}},
		{name: "cilium-services-and-pods", faults: []fault{
			{"worker2 announces Services alone", lost("10.0.2.0/24"), judgement{findings: []string{"active unannounced 10.0.2.0/24"}}},
			{"worker2 announces Services alone to one router", []edit{{old: "prefix: 10.0.2.0/24", first: true}}, judgement{findings: []string{"active unannounced 10.0.2.0/24"}}},
			{"the advertisement's label has changed",
				[]edit{{old: "neighbor: 10.4"}, {old: "labels: {advertise: bgp}", new: "labels: {advertise: pods}"}}, judgement{notJudged: []string{keptIn, keptIn}, open: true}},
			{"the nodes' peers know no configuration",
				[]edit{{old: "neighbor: 10.4"}, {old: "name: tor}}]", new: "name: gone}}]"}}, judgement{notJudged: []string{keptIn, keptIn}, open: true}},
		}},
		{name: "anycast-ecmp", faults: []fault{
			{"worker2 announces Services alone", lost("10.244.2.0/24"), judgement{findings: []string{"active unannounced 10.244.2.0/24"}}},
			{"worker1 announces worker2's range", []edit{{old: "prefix: 10.244.2.0/24, next_hop: 10.4.94.12, neighbor: 10.4.94.12", new: "prefix: 10.244.2.0/24, next_hop: 10.4.94.11, neighbor: 10.4.94.11"}}, judgement{findings: []string{"latent wrong-announcer 10.244.2.0/24"}}},
		}},
		{name: "local-addresses", faults: []fault{
			{"worker2's range is lost", lost("10.244.2.0/24"), judgement{findings: []string{"active unannounced 10.244.2.0/24"}}},
		}},
		// It is not known that mgmt should only have Services.
		{name: "filtering-routers", judgement: judgement{notJudged: []string{"mgmt has no route to pod ranges of worker1 and worker2, and is not judged by that: " + noPods}, open: true},
			faults: []fault{
				{"worker2's range is lost", lost("10.244.2.0/24"), judgement{findings: []string{"active unannounced 10.244.2.0/24"}, notJudged: []string{"mgmt"}, open: true}},
				{"it is filtered", append(lost("10.244.2.0/24"), edit{old: "received: 2, accepted: 2", new: "received: 2, accepted: 1"}), judgement{notJudged: []string{"mgmt", "tor1 has no route to pod ranges of worker2, and is not judged by that: " + rejects}, open: true}},
			}},
		{name: "clocks", ahead: []time.Duration{-time.Hour, 0, time.Hour},
			judgement: judgement{findings: []string{"settling no-route 192.0.2.9/32", "settling unannounced 10.244.3.0/24"}, open: true}, faults: []fault{
				{"they have not come for an hour", []edit{{old: `[[ago "5s"]]`, new: `[[ago "30m"]]`}}, judgement{findings: []string{"active no-route 192.0.2.9/32", "active unannounced 10.244.3.0/24"}}},
			}},
		{name: "other-load-balancers", judgement: judgement{notJudged: []string{noPods}}, faults: []fault{
			{"MetalLB's Service is lost", lost("192.0.2.1/32"), judgement{findings: []string{"active no-route 192.0.2.1/32"}, notJudged: []string{noPods}}},
			{"the other Service is MetalLB's", []edit{{old: ", loadBalancerClass: kube-vip.io/kube-vip-class", new: " "}}, judgement{findings: []string{"active no-route 192.0.2.50/32"}, notJudged: []string{noPods}}},
			{"MetalLB has that class", []edit{{old: "kube-vip.io/vipHost: worker1", new: "metallb.io/ip-allocated-from-pool: users"}}, judgement{findings: []string{"active no-route 192.0.2.50/32"}, notJudged: []string{noPods}}},
		}},
		// Only workers have BGP. The router has a neighbour for each worker, and worker3 is down.
		{name: "cilium-workers", judgement: judgement{notJudged: []string{"of cp1, and is not judged by that: no CiliumBGPClusterConfig", "of worker3, and is not judged by that: the node is not ready"}},
			faults: []fault{
				{"worker2's range is lost", lost("10.0.2.0/24"), judgement{findings: []string{"active unannounced 10.0.2.0/24"}, notJudged: []string{"of cp1", "of worker3"}}},
				{"worker2 has lost its label", append(lost("10.0.2.0/24"), edit{old: "{bgp: on-worker2}", new: "{bgp: none}"}), judgement{notJudged: []string{"of cp1 and worker2", "of worker3"}, open: true}},
				{"worker3 is ready", []edit{{old: "worker3\" \"10.4.94.13\" \"False", new: "worker3\" \"10.4.94.13\" \"True"}}, judgement{findings: []string{"active unannounced 10.0.3.0/24"}, notJudged: []string{"of cp1"}}},
				{"a static route has worker2's packets go to worker1", []edit{{old: "#static", new: "- {prefix: 10.0.2.0/24, type: unicast, protocol: static, metric: 20, next_hops: [{address: 10.4.94.11, interface: swp1}]}"}},
					judgement{findings: []string{"latent wrong-announcer 10.0.2.0/24"}, notJudged: []string{"of cp1", "of worker3"}}},
				{"a static route has them go to a machine that is gone", []edit{{old: "#static", new: "- {prefix: 10.0.2.0/24, type: unicast, protocol: static, metric: 20, next_hops: [{address: 10.4.94.77, interface: swp1}]}"}},
					judgement{findings: []string{"active unannounced 10.0.2.0/24", "latent absent-node 10.0.2.0/24"}, notJudged: []string{"of cp1", "of worker3"}}},
				{"a static route of BIRD discards them", []edit{{old: "#static", new: "- {prefix: 10.0.2.0/24, type: blackhole, protocol: bird, metric: 32}"}},
					judgement{findings: []string{"active unannounced 10.0.2.0/24"}, notJudged: []string{"of cp1", "of worker3"}}},
				{"worker2's session has ended, and its route is kept", []edit{{old: "established # worker2", new: "idle"}}, judgement{findings: []string{"latent stale-route 10.0.2.0/24"}, notJudged: []string{"of cp1", "of worker3"}}},
			}},
		// Route reflectors in the cluster connect the nodes, and the routers get MetalLB's Services.
		{name: "calico-reflectors", judgement: judgement{notJudged: []string{noPods}}, faults: []fault{
			{"the Service is lost", lost("192.0.2.1/32"), judgement{findings: []string{"active no-route 192.0.2.1/32"}, notJudged: []string{noPods}}},
			{"a BGPPeer has the nodes announce blocks to the router", []edit{{old: "peerSelector: route-reflector == 'true'", new: "peerIP: 10.4.94.253, asNumber: 64512"}}, judgement{notJudged: []string{noPods}, open: true}},
			{"policy Local asks for an endpoint on each node", []edit{{old: "externalTrafficPolicy: Cluster", new: "externalTrafficPolicy: Local"}}, judgement{findings: []string{"active no-local-endpoint 192.0.2.1/32"}, notJudged: []string{noPods}}},
		}},
		{name: "layer2", judgement: judgement{notJudged: []string{noPods}}, faults: []fault{
			{"the router sends to a node without an endpoint", []edit{{old: `5e:0b", confirmed: true} # arp`, new: `5e:0c", confirmed: true}`}}, judgement{findings: []string{"active stale-neighbour 10.4.94.128/32"}, notJudged: []string{noPods}}},
			{"and asks again before it does", []edit{{old: `5e:0b", confirmed: true} # arp`, new: `5e:0c"}`}}, judgement{findings: []string{"latent stale-neighbour 10.4.94.128/32"}, notJudged: []string{noPods}}},
			{"the endpoint moves, and the announcement stays", []edit{{old: "Cluster", new: "Local"}}, judgement{findings: []string{"active lease-without-endpoint 10.4.94.200/32", "active no-local-endpoint 192.0.2.1/32"}, notJudged: []string{noPods}}},
			{"another machine answers", []edit{{old: `5e:0c", confirmed: true} # cilium`, new: `5e:4d", confirmed: true}`}}, judgement{findings: []string{"active two-speakers 10.4.94.200/32"}, notJudged: []string{noPods}}},
			{"MetalLB and Cilium announce one Service", []edit{{old: "shop-cilium", new: "shop-arp"}}, judgement{findings: []string{"active two-speakers 10.4.94.128/32"}, notJudged: []string{noPods}}},
		}},
		{name: "openshift", judgement: judgement{notJudged: []string{"neither CiliumNodes, nor IPAMBlocks, nor Nodes have any"}}, faults: []fault{
			{"the Service is lost", lost("192.0.2.1/32"), judgement{findings: []string{"active no-route 192.0.2.1/32"}, notJudged: []string{"neither CiliumNodes"}}},
			{"nobody has said that the router gets Services alone", []edit{{old: "services: true"}}, judgement{notJudged: []string{"neither CiliumNodes"}, open: true}},
		}},
		// Each node has a block of both address families, and an IPv4 peer. The file says that the router gets the blocks.
		{name: "calico-one-family", judgement: judgement{notJudged: []string{"no BGPPeer of Calico gives the node a peer of that family"}},
			faults: []fault{
				{"worker2's block is lost", lost("10.244.2.0/26"), judgement{findings: []string{"active unannounced 10.244.2.0/26"}, notJudged: []string{"no BGPPeer"}}},
				{"there is a peer of IPv6", []edit{{old: "10.4.94.252", new: "fd00:94::253"}}, judgement{findings: []string{"active unannounced fd00:244:1::/122", "active unannounced fd00:244:2::/122"}}},
			}},
		// With CNI chaining Cilium has CiliumNodes, and pods have addresses of Calico.
		{name: "chained", faults: []fault{
			{"worker2's block is lost", lost("10.244.2.0/26"), judgement{findings: []string{"active unannounced 10.244.2.0/26"}}},
		}},
		{name: "peering-policy", faults: []fault{
			{"all is lost, and the router has forgotten its neighbours", []edit{{old: "neighbor: 10.4"}, {old: "- {address: 10.4"}}, judgement{notJudged: []string{noPods}, open: true}},
			{"pods are not exported any more", []edit{{old: "neighbor: 10.4"}, {old: "exportPodCIDR: true", new: "exportPodCIDR: false"}}, judgement{notJudged: []string{keptIn}}},
		}},
		{name: "antrea", faults: []fault{
			{"all is lost, and the router has forgotten its neighbours", []edit{{old: "neighbor: 10.4"}, {old: "- {address: 10.4"}}, judgement{notJudged: []string{noPods}, open: true}},
			{"the same, by an FRRConfiguration", []edit{{old: "neighbor: 10.4"}, {old: "- {address: 10.4"}, {old: "crd.antrea.io/v1alpha1", new: "frrk8s.metallb.io/v1beta1"}, {old: "BGPPolicy", new: "FRRConfiguration"},
				{old: "{name: rack-a}", new: "{namespace: frr-k8s-system, name: rack-a}"}, {old: "advertisements: {pod: {}}", new: "bgp: {routers: [{asn: 64513, prefixes: [10.0.0.0/16]}]}"}}, judgement{notJudged: []string{noPods}, open: true}},
			{"Services alone are to be announced", []edit{{old: "neighbor: 10.4"}, {old: "- {address: 10.4"}, {old: "pod: {}", new: "service: {ipTypes: [LoadBalancerIP]}"}}, judgement{notJudged: []string{noPods}}},
			{"the policy selects no node", []edit{{old: "neighbor: 10.4"}, {old: "- {address: 10.4"}, {old: "nodeSelector: {matchLabels: {rack: a}}", new: "nodeSelector: {matchLabels: {rack: b}}"}}, judgement{notJudged: []string{noPods}}},
		}},
		{name: "rke2", judgement: judgement{findings: []string{"hint untagged CronJob shop/backup, container backup"}, notJudged: []string{noPods}},
			faults: []fault{
				{"the role has lost a rule", []edit{{old: "ciliumnodes, ", new: ""}}, judgement{findings: []string{"hint untagged CronJob shop/backup, container backup", "latent not-permitted ServiceAccount kube-system/cilium, rancher/mirrored-cilium-cilium:v1.18.4"}, notJudged: []string{noPods}}},
				{"the network has an untagged image", []edit{{old: "mirrored-cilium-cilium:v1.18.4", new: "mirrored-cilium-cilium"}},
					judgement{findings: []string{"hint untagged CronJob shop/backup, container backup", "latent untagged DaemonSet kube-system/cilium, container cilium-agent"}, notJudged: []string{noPods}}},
			}},
		// kube-router is the proxy of Services, and masquerades pods by default.
		{name: "kube-router-nodes", judgement: judgement{findings: []string{"hint hidden-source rule "}}, faults: []fault{
			{"another rule hides them", []edit{{old: "text: -A POSTROUTING -m set --match-set kube-router-pod-subnets src", new: "text: -A POSTROUTING -m set --match-set docker src"}}, judgement{findings: []string{"active hidden-source rule "}}},
		}},
		// An overlay, and a router with a summary route of the site.
		{name: "k3s-summary", judgement: judgement{notJudged: []string{noPods}}, faults: []fault{
			{"a static route says that pods are to be seen", []edit{{old: "#static", new: "- {prefix: 10.42.1.0/24, type: unicast, protocol: static, next_hops: [{address: 10.4.94.11, interface: swp1}]}"}},
				judgement{findings: []string{"active hidden-source 10.42.0.0/16"}}},
		}},
		{name: "architectures", judgement: judgement{findings: []string{"hint architecture-images DaemonSet kube-system/exporter, container exporter"}},
			faults: []fault{
				{"one of two nodes of an architecture runs another image", []edit{{old: strings.Repeat("a", 64), new: strings.Repeat("c", 64), first: true}}, judgement{findings: []string{"latent mixed-images DaemonSet kube-system/exporter, container exporter"}}},
			}},
	} {
		if c.ahead == nil {
			c.ahead = []time.Duration{0}
		}
		for _, ahead := range c.ahead {
			if realAPI != "" && ahead != 0 {
				continue // the server has the machine's clock
			}
			for _, f := range append([]fault{{"none", nil, c.judgement}}, c.faults...) {
				t.Run(c.name+"/"+f.name+"/"+ahead.String(), func(t *testing.T) {
					r := judgedFolder(t, c.name, ahead, f.edits, nil)
					must.Equal(t, "findings", slices.Sorted(slices.Values(f.findings)), slices.Sorted(slices.Values(found(r.Findings))))
					must.Equal(t, r.NotJudged, len(f.notJudged), len(r.NotJudged))
					for n := range min(len(r.NotJudged), len(f.notJudged)) {
						must.Contain(t, r.NotJudged[n].Says, f.notJudged[n])
					}
					must.Equal(t, "open, and not read", [...]any{f.open, 0}, [...]any{r.Open(), len(r.Unread) + len(r.Once)})
					if realAPI != "" {
						return
					}
					for _, form := range forms {
						b := judgedFolder(t, c.name, ahead, f.edits, form.collect)
						must.Equal(t, form.name+": findings", found(r.Findings), found(b.Findings))
						must.Equal(t, form.name+": not judged", r.NotJudged, b.NotJudged)
						must.Equal(t, form.name+": unread", r.Unread, b.Unread)
					}
				})
			}
		}
	}
}

// judgedFolder reads the objects of a folder from an API server, or from a bundle that collect makes of them, and the
// output of its routers, and judges both.
func judgedFolder(t *testing.T, folder string, ahead time.Duration, edits []edit, collect func(t *testing.T, objects []map[string]any) string) Result {
	t.Helper()
	text, edited := map[string]string{}, make([]bool, len(edits))
	for _, name := range []string{"objects.yaml", "routers.yaml", "nodes.yaml"} {
		file, err := os.ReadFile(filepath.Join("testdata", "falsealarms", folder, name))
		if name == "nodes.yaml" && errors.Is(err, os.ErrNotExist) {
			continue // the file is not read
		}
		must.NoError(t, err)
		content := string(file)
		for i, e := range edits {
			edited[i] = edited[i] || strings.Contains(content, e.old)
			content = e.apply(content)
		}
		text[name] = at(t, content, time.Now().Add(ahead))
	}
	for i, e := range edits {
		must.Equal(t, folder+" has "+e.old, true, edited[i])
	}
	var config *rest.Config
	var collected *bundle.Bundle
	if collect == nil {
		config = configOf(t, text["objects.yaml"], ahead)
	} else {
		objects := text["objects.yaml"] + "\n" + at(t, everywhere(), time.Now().Add(ahead))
		collected = must.Get(bundle.Open(collect(t, objectsOf(t, objects)), Bundled))(t)
		config = collected.Config()
	}
	var routers []snapshot.Router
	must.NoError(t, yaml.UnmarshalStrict([]byte(text["routers.yaml"]), &routers))
	collector, err := snapshot.Open(t.Context(), Access{Config: config, unreachable: errNotReached}, sources(scope{routers: true, nodes: text["nodes.yaml"] != ""})...)
	must.NoError(t, err)
	t.Cleanup(func() { collector.Close() })
	collector.Allow(time.Minute) // on a busy machine
	var reads []snapshot.Snapshot
	for range 2 {
		read := collector.Collect(t.Context())
		read.Routers = routers
		if collected != nil {
			ofBundle(&read, collected)
		}
		if nodes, there := text["nodes.yaml"]; there {
			must.NoError(t, yaml.UnmarshalStrict([]byte(nodes), &read))
			for i := range read.Sources {
				read.Sources[i].Unreachable = ""
			}
		}
		reads = append(reads, read)
	}
	return must.Get(Judge(reads))(t)
}

func configOf(t *testing.T, objects string, ahead time.Duration) *rest.Config {
	t.Helper()
	s := newServer(t)
	s.ahead = ahead
	documents := slices.DeleteFunc(strings.Split(objects, "\n---\n"), func(d string) bool { return strings.TrimSpace(d) == "" })
	for _, document := range documents {
		s.object(t, document)
	}
	if realAPI != "" {
		return onReal(t, documents)
	}
	return s.config(t)
}

func (e edit) apply(text string) string {
	n := -1
	if e.first {
		n = 1
	}
	if e.new != "" {
		return strings.Replace(text, e.old, e.new, n)
	}
	var lines []string
	for line := range strings.Lines(text) {
		if n != 0 && strings.Contains(line, e.old) {
			n--
			continue
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// node is a Node, with more fields of its metadata and spec.
func node(name, address, ready, meta, spec string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: %[1]s, uid: uid-%[1]s, creationTimestamp: "2026-01-05T08:00:00Z", %[4]s}
spec: {%[5]s}
status:
  addresses: [{type: InternalIP, address: %[2]s}, {type: Hostname, address: %[1]s}]
  conditions: [{type: MemoryPressure, status: "False"}, {type: Ready, status: "%[3]s"}]
  nodeInfo: {architecture: amd64, operatingSystem: linux}
---`, name, address, ready, meta, spec)
}

func pod(name, node, address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: %[1]s, uid: uid-%[1]s, labels: {app: web}}
spec: {nodeName: %[2]s, containers: [{name: web, image: "registry.example/web:1.4.2", imagePullPolicy: IfNotPresent}]}
status: {phase: Running, podIP: "%[3]s", podIPs: [{ip: "%[3]s"}]}
---`, name, node, address)
}

// at executes a template with functions for Nodes, pods, and times before now.
func at(t *testing.T, text string, now time.Time) string {
	t.Helper()
	ago := func(text string) (string, error) {
		d, err := time.ParseDuration(text)
		return now.Add(-d).UTC().Format(time.RFC3339), err
	}
	parsed := must.Get(template.New("").Delims("[[", "]]").Funcs(template.FuncMap{"ago": ago, "node": node, "pod": pod}).Parse(text))(t)
	var b strings.Builder
	must.NoError(t, parsed.Execute(&b, nil))
	return b.String()
}

func (s *server) object(t *testing.T, document string) {
	t.Helper()
	var header struct{ APIVersion, Kind string }
	must.NoError(t, yaml.Unmarshal([]byte(document), &header))
	item := must.Get(yaml.YAMLToJSON([]byte(document)))(t)
	for _, r := range resources {
		if kinds[r.Resource] == header.Kind+"List" && r.GroupVersion().String() == header.APIVersion {
			s.add(bundle.Path(r), string(item))
			return
		}
	}
	t.Fatalf("an audit does not read %s %s", header.APIVersion, header.Kind)
}
