package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// saved matches the name of a read's file, which is a snapshot as in the evidence of a run.
var saved = regexp.MustCompile(`^\d\d-snapshot-audit\.json$`)

// Save writes reads to a folder that Prepare has made.
func Save(dir string, reads []snapshot.Snapshot) error {
	folder, err := rundir.Open(dir)
	if err != nil {
		return fmt.Errorf("saving the reads: %w", err)
	}
	defer folder.Close()
	for i, s := range reads {
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("saving read %d: %w", i+1, err)
		}
		if len(text) > rundir.MaxFile {
			return fmt.Errorf("saving read %d: it has %d bytes, and %d can be read again: keep it without the routers that have most routes",
				i+1, len(text), rundir.MaxFile)
		}
		err = folder.Replace(nameOf(i), text)
		if err == nil { // other users may read a folder that existed before
			err = os.Chmod(filepath.Join(dir, nameOf(i)), 0o600)
		}
		if err != nil {
			return fmt.Errorf("saving read %d: %w", i+1, err)
		}
	}
	return nil
}

// Prepare makes a folder for Save, for this user only. A folder with reads is an error.
func Prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	switch names, err := savedIn(dir); {
	case err != nil:
		return err
	case len(names) > 0:
		return fmt.Errorf("%s has the reads of an audit already: expected a folder without them", dir)
	}
	return nil
}

// mostObjects bounds the objects of a saved read: it is enough for the answers of a hundred nodes.
const mostObjects = 5_000_000

// IsSaved reports whether a folder was written by Save; otherwise it is a bundle.
func IsSaved(dir string) bool {
	names, err := savedIn(dir)
	return err == nil && len(names) > 0
}

// Saved reads a folder of Save, which may come from another person.
func Saved(dir string) ([]snapshot.Snapshot, error) {
	names, err := savedIn(dir)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if name != nameOf(i) {
			return nil, fmt.Errorf("%s has no %s: expected what relapse audit --save has written", dir, nameOf(i))
		}
	}
	if len(names) == 0 || len(names) > mostReads {
		return nil, fmt.Errorf("%s has %d files such as 01-snapshot-audit.json: expected those that relapse audit --save has written",
			dir, len(names))
	}
	folder, err := rundir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	var reads []snapshot.Snapshot
	for _, name := range names {
		text, err := folder.ReadFile(name)
		if err != nil {
			return nil, err
		}
		s, err := snapshot.Parse(text, mostObjects)
		if err != nil {
			return nil, fmt.Errorf("%s/%s is no snapshot: %w", dir, name, err)
		}
		if s.Time.IsZero() || len(s.Sources) == 0 {
			return nil, fmt.Errorf("%s/%s is no snapshot of an audit: it has no time, or no sources", dir, name)
		}
		if s.Redacted {
			return nil, fmt.Errorf("%s/%s is for reading: its names and addresses were replaced, which cannot be undone", dir, name)
		}
		if asked(s, snapshot.Routers) && len(s.Routers) == 0 {
			return nil, fmt.Errorf("%s/%s asked for routers, and has none", dir, name)
		}
		reads = append(reads, s)
	}
	if len(reads) == 1 && reads[0].Nodes.Read {
		return nil, fmt.Errorf("%s has one read: expected two or three", dir)
	}
	return reads, nil
}

func nameOf(read int) string { return fmt.Sprintf("%02d-snapshot-audit.json", read+1) }

func asked(s snapshot.Snapshot, source snapshot.Source) bool {
	return slices.ContainsFunc(s.Sources, func(a snapshot.Asked) bool { return a.Name == source.String() })
}

func savedIn(dir string) ([]string, error) {
	folder, err := rundir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Files(".")
	if err != nil {
		return nil, err
	}
	return each.Where(names, saved.MatchString), nil
}

// Bundled are the resources that are read from a bundle.
var Bundled = append(slices.Clone(resources), schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})

// FromBundle makes one read of a cluster from a bundle, and of its routers from files. It has the time of the bundle.
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

// ofBundle gives a read the time of its bundle: ages are by the clock of the cluster. If not all Pods were collected,
// it makes CiliumNodes unread where it is not known which objects the addresses of Pods come from.
func ofBundle(s *snapshot.Snapshot, b *bundle.Bundle) {
	s.Time, s.Took, s.ServerAhead = b.Time(), 0, 0
	for i := range s.EndpointSlices.Items {
		if e := &s.EndpointSlices.Items[i]; e.Changed.IsZero() {
			e.Changed = s.Time // kubectl omits managedFields, and one read does not show what lasts
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

// Locate adds to each finding the places of its objects in the bundle, and to the result the damaged and the incomplete
// parts. redacted omits names of files. A finding that may be transient becomes pending: a bundle is one read.
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

// namedObject matches an object of a finding with its kind: DaemonSet kube-system/cilium, container cilium-agent.
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
