package release

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/objects"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Layer2 are the objects by which a lab's agents answer by ARP for addresses of Services.
type Layer2 struct {
	objects.Adapted
	// Labels are the labels of the Services.
	Labels map[string]string
}

const kindLayer2 = "CiliumL2AnnouncementPolicy"

// Answerer is the class of Services that Cilium's layer 2 alone announces (L2AnnounceLoadBalancerClass of its v2alpha1
// types): BGP would announce them as well if its advertisements select them.
const Answerer = "io.cilium/l2-announcer"

// AdaptLayer2 adapts a user's policies to a lab: the agents of some nodes answer for a pool of the lab's addresses. The
// lab adds a policy if none of the user's is for addresses of Services of type LoadBalancer.
func AdaptLayer2(text string, addresses snapshot.AddressRange, nodes []string) (Layer2, error) {
	var l Layer2
	all, err := objects.Read(text)
	if err != nil {
		return l, err
	}
	own, err := workload.Objects(strings.NewReplacer(
		"${first}", addresses.First.String(), "${last}", addresses.Last.String(), "${nodes}", strings.Join(nodes, ", "),
	).Replace(layer2))
	if err != nil {
		return l, err
	}
	for _, o := range all {
		if o.GetKind() == kindLayer2 && o.GroupVersionKind().Group == group {
			l.adapt(o, own[1], nodes)
		}
	}
	if l.Labels == nil {
		l.Labels = labelsOf(answered)
		l.Own("none selects Services of type LoadBalancer by labels that the lab's can have", own[1])
	}
	l.Objects = append(l.Objects, own[0])
	return l, l.Missing()
}

// adapt gives a policy the lab's nodes. Services get the labels that the first policy for load balancers selects.
func (l *Layer2) adapt(o, own *unstructured.Unstructured, nodes []string) {
	o.SetNamespace("")
	o.SetAPIVersion(string(Alpha)) // the only version of the type
	f, _ := l.Spec(o)
	f.Drop("the agents of "+strings.Join(nodes, " and ")+" answer", "nodeSelector")
	f.Drop("the nodes have one network", "interfaces")
	f.Values["nodeSelector"], _ = chart.Get(own.Object, "spec.nodeSelector")
	l.Objects = append(l.Objects, o)
	selector := f.Values["serviceSelector"]
	if selector == nil {
		selector = map[string]any{} // all
	}
	if labels, ok := labelsOfService(selector, labelsOf(answered)); ok && l.Labels == nil && f.Values["loadBalancerIPs"] == true {
		l.Labels = labels
	}
}

// Apply creates the objects, the pool in the newest type of a version, when the operator has registered the types.
func (l Layer2) Apply(types Types) framework.Action {
	if types == Policy {
		types = Alpha
	}
	return apply(inVersion(types, l.Objects))
}

var bgpKinds = []string{kindCluster, kindPeer, kindAdvertisement, kindPool, string(Policy)}

// OfBGP reports whether objects have one of BGP, and whether they say who the peers are and how they restart.
func OfBGP(text string) (some, peers bool, err error) {
	all, err := objects.Read(text)
	for _, o := range all {
		kind := o.GetKind()
		isBGP := o.GroupVersionKind().Group == group && slices.Contains(bgpKinds, kind)
		some, peers = some || isBGP, peers || isBGP && kind != kindAdvertisement && kind != kindPool
	}
	return some, peers, err
}

// LeftOut says which of a user's objects a lab leaves out because the values do not switch on what reads them. The
// error says that no object is of Cilium's types of BGP and layer 2.
func LeftOut(text string, bgp, layer2 bool) (reasons []string, err error) {
	all, err := objects.Read(text)
	used := 0
	for _, o := range all {
		name, kind := objects.Name(o), o.GetKind()
		supported := o.GroupVersionKind().Group == group && (kind == kindLayer2 || slices.Contains(bgpKinds, kind))
		switch {
		case !supported && bgp: // Adapt says it
		case !supported:
			reasons = append(reasons, fmt.Sprintf("%s: left out: it is not of Cilium's types of BGP and layer 2", name))
		case kind == kindLayer2 && !layer2:
			reasons = append(reasons, fmt.Sprintf("%s: left out: the values lack l2announcements.enabled: true", name))
		case kind == kindPool && !bgp:
			reasons = append(reasons, fmt.Sprintf("%s: left out: the addresses for which the lab's nodes answer by ARP are in their network", name))
		case kind != kindLayer2 && !bgp:
			reasons = append(reasons, fmt.Sprintf("%s: left out: the values lack bgpControlPlane.enabled: true", name))
		}
		if supported {
			used++
		}
	}
	if err == nil && used == 0 {
		err = fmt.Errorf("none of its %d objects is of Cilium's types of BGP and layer 2: expected %s, %s, %s, %s or %s",
			len(all), kindCluster, kindPeer, kindAdvertisement, kindPool, kindLayer2)
	}
	return reasons, err
}

// answered is the label of Services for whose addresses agents answer by ARP, as "key: value".
const answered = "answered-by: lab"

const layer2 = `apiVersion: cilium.io/v2alpha1
kind: CiliumLoadBalancerIPPool
metadata: {name: arp}
spec:
  blocks: [{start: ${first}, stop: ${last}}]
  serviceSelector: {matchLabels: {` + answered + `}}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumL2AnnouncementPolicy
metadata: {name: relapse-arp}
spec:
  loadBalancerIPs: true
  serviceSelector: {matchLabels: {` + answered + `}}
  nodeSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [${nodes}]}]}
`
