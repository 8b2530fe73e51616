package audit

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Bundled are the resources that are kept of a bundle.
var Bundled = append(slices.Clone(resources), schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})

// FromBundle reads a cluster as a collector has seen it, once, and its routers from files. The time of the
// read is the bundle's.
func FromBundle(ctx context.Context, b *bundle.Bundle, routing map[string]snapshot.RouterReader) (snapshot.Snapshot, error) {
	wanted := append(sources(scope{routers: len(routing) > 0}), snapshot.ConfigMaps(ciliumConfig))
	collector, err := snapshot.Open(ctx, Access{Config: b.Config(), Routing: routing, unreachable: errNotReached}, wanted...)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer collector.Close()
	collector.Allow(within)
	s := collector.Collect(ctx)
	ofBundle(&s, b)
	return s, nil
}

// ofBundle gives a read the time of its bundle: ages are by the clock of the cluster. Where a part of the Pods was
// collected, it is not known from which objects of several most of them have their addresses.
func ofBundle(s *snapshot.Snapshot, b *bundle.Bundle) {
	s.Time, s.Took, s.ServerAhead = b.Time(), 0, 0
	for i := range s.EndpointSlices.Items {
		if e := &s.EndpointSlices.Items[i]; e.Changed.IsZero() {
			e.Changed = s.Time // kubectl leaves out who has written what, and one read does not tell what lasts
		}
	}
	if why := b.Lacks(); why != "" && s.Pods.Read {
		s.Pods = snapshot.List[snapshot.Pod]{Error: why}
		ofNodes := slices.ContainsFunc(s.Nodes.Items, func(n snapshot.Node) bool { return len(n.PodCIDRs) > 0 })
		if len(s.CiliumNodes.Items) > 0 && (ofNodes || len(s.CalicoBlocks.Items) > 0) || ofNodes && len(s.CalicoBlocks.Items) > 0 {
			s.CiliumNodes = snapshot.List[snapshot.CiliumNode]{
				Error: "whether Pods have their addresses from CiliumNodes, IPAMBlocks or Nodes is not known: " + why,
			}
		}
	}
}

// Locate adds to each finding where the bundle has the objects that it names, and to the result what of the bundle is
// damaged, and of what it has a part alone. Redacted leaves out the names of its files. What a change may show for a
// moment is pending: a bundle is one read.
func (r *Result) Locate(b *bundle.Bundle, last snapshot.Snapshot, redacted bool) {
	for _, broken := range b.Broken {
		if redacted {
			broken.Source = "files of the bundle"
		}
		r.Unread = append(r.Unread, broken)
	}
	for _, part := range b.Parts() {
		r.NotJudged = append(r.NotJudged, detect.Gap{Says: part, Open: true})
	}
	for _, all := range [][]Finding{r.Findings, r.Once} {
		for i := range all {
			f := &all[i]
			if f.State == detect.Active && (f.Kind == detect.SharedAddress || f.Kind == detect.LeaseWithoutEndpoint) {
				f.State = detect.Pending
				f.Says += " Pending: a bundle has one read, and does not tell whether it lasts."
			}
			if !redacted {
				f.Bundle = places(b, detail{Finding: f.Finding, read: last})
			}
		}
	}
	r.sort()
}

// namedObject is an object of a finding that has a kind: DaemonSet kube-system/cilium, container cilium-agent.
var namedObject = regexp.MustCompile(`^([A-Z]\w+) (?:([^/ ]+)/)?([^/, ]+)`)

const mostPlaces = 12

func places(b *bundle.Bundle, d detail) []string {
	found := map[string]bool{}
	at := func(namespace, name string, kinds ...string) {
		for _, kind := range kinds {
			for _, place := range b.Where(kind, namespace, name) {
				found[place] = true
			}
		}
	}
	for _, node := range []string{d.Owner, d.Announcer, d.Object.String()} {
		at("", node, "Node", "CiliumNode")
	}
	if named := namedObject.FindStringSubmatch(d.Object.String()); named != nil {
		at(named[2], named[3], named[1])
	}
	for _, s := range d.services() {
		at(s.Namespace, s.Name, "Service")
	}
	for _, pod := range d.Pods {
		if len(found) < mostPlaces {
			namespace, name, _ := strings.Cut(pod, "/")
			at(namespace, name, "Pod")
		}
	}
	all := slices.Sorted(maps.Keys(found))
	return all[:min(len(all), mostPlaces)]
}
