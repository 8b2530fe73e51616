package detect

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// NoReverseName is the kind of the findings of ReverseName.
const NoReverseName = "no-reverse-name"

// ReverseName finds pods of CoreDNS that answer NXDOMAIN for the addresses of endpoints without a
// hostname (coredns#7177; serviceRecordForIP of plugin/kubernetes/reverse.go): 1.11.4 and 1.12.0. The
// Kubernetes DNS specification asks for a PTR record of each ready endpoint of a headless Service
// (2.4.3). Pods of other Services lose theirs as well, and nobody was promised one.
type ReverseName struct{}

var withoutReverseNames = []string{"1.11.4", "1.12.0"}

func (ReverseName) Name() string { return "reverse-name" }

func (ReverseName) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.RunningImages, snapshot.EndpointSlices}
}

// Detect implements Detector. There is one finding for each version, in their order.
func (d ReverseName) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	now := history[len(history)-1]
	unnamed, services := 0, map[string]bool{}
	for _, e := range now.EndpointSlices.Items {
		if e.Unnamed > 0 {
			unnamed += e.Unnamed
			services[e.Namespace+"/"+e.Service] = true
		}
	}
	if unnamed == 0 {
		return nil
	}
	pods := map[string][]string{}
	for _, p := range now.PodImages.Items {
		for _, c := range p.Containers {
			ref, err := snapshot.ParseReference(c.Image)
			version, _, _ := strings.Cut(strings.TrimPrefix(ref.Tag, "v"), "-")
			if err == nil && !c.Init && coreDNS(ref.Name) && slices.Contains(withoutReverseNames, version) {
				pods[version] = append(pods[version], p.String())
			}
		}
	}
	var findings []Finding
	for _, version := range slices.Sorted(maps.Keys(pods)) {
		findings = append(findings, Finding{
			Kind: NoReverseName, State: Active, Object: Named("CoreDNS " + version), Pods: pods[version],
			Says: fmt.Sprintf("CoreDNS %s answers NXDOMAIN for the addresses of endpoints without a hostname: %d of %s. "+
				"Programs that ask for the name of an address, such as Kerberos, are refused.",
				version, unnamed, and(slices.Sorted(maps.Keys(services)))),
		})
	}
	return findings
}

// coreDNS reports whether an image of a name has CoreDNS: the vendor's, or a copy of it under another name.
func coreDNS(name string) bool { return strings.HasSuffix(path.Base(name), "coredns") }
