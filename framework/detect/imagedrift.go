package detect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of ImageDrift.
const (
	// MixedImages: pods of one template run different images, on nodes of one architecture.
	MixedImages = "mixed-images"
	// ChangedImage: pods of a workload run another image than before, while the
	// image reference in their spec is the same.
	ChangedImage = "changed-image"
	// ArchImages: what runs differs between architectures alone. A hint: an image of several
	// architectures has a digest for each, which some runtimes report.
	ArchImages = "architecture-images"
)

// ImageDrift finds containers that run another image than their siblings, or
// than their predecessors, under the same reference, on nodes of one architecture.
//
// The finding is latent, because the other image may work as well. It is active
// when a router has no route to the pods of a node that runs the newer image.
type ImageDrift struct {
	// Peering says which routers are expected to have a route to a node's pods.
	Peering Peering
}

func (ImageDrift) Name() string { return "image-drift" }

func (d ImageDrift) Reads() []snapshot.Source {
	return append([]snapshot.Source{snapshot.RunningImages, snapshot.Nodes, snapshot.Pods, snapshot.CiliumNodes, snapshot.CalicoBlocks,
		snapshot.Routers}, d.Peering.announcing()...)
}

// Detect implements Detector. Findings are in order of workload, one for each container.
func (d ImageDrift) Detect(history []snapshot.Snapshot, x *Index) []Finding {
	now := history[len(history)-1]
	past := pastImages(history, x)
	arch := architectures(history)
	view := newViews(history, x, d.Peering).now()
	var findings []Finding
	for _, u := range imageUses(now) {
		if strings.HasPrefix(u.owner, "CronJob ") {
			continue // its pods are of different templates, and each is new
		}
		// Several, while a change of the image is rolled out.
		asked := each.Once(each.Of(u.pods, func(p runningImage) string { return p.container.Image }))
		for _, image := range asked {
			if f, ok := drift(u, image, past[useKey{u.owner, u.container.Name, image}], arch, view, x); ok {
				findings = append(findings, f)
			}
		}
	}
	return findings
}

// useKey is what must stay the same for an image to drift.
type useKey struct{ owner, container, image string }

type seenImage struct {
	digest, template, node string
}

// pastImages lists what containers ran in any snapshot, each pod once for each image: in order of snapshot, and
// within a snapshot in the order in which the pods were created.
func pastImages(history []snapshot.Snapshot, x *Index) map[useKey][]seenImage {
	type podImage struct{ uid, container, digest string }
	images := map[podImage]bool{}
	all := map[useKey][]seenImage{}
	for _, s := range history {
		pods := make([]*snapshot.PodImages, len(s.PodImages.Items))
		for i := range pods {
			pods[i] = &s.PodImages.Items[i]
		}
		slices.SortStableFunc(pods, func(a, b *snapshot.PodImages) int { return a.Created.Compare(b.Created) })
		for _, p := range pods {
			owner := ownerOf(*p)
			for _, c := range p.Containers {
				id := podImage{p.UID, c.Name, x.pulled(c)}
				if id.digest == "" || images[id] {
					continue
				}
				if len(history) > 1 {
					images[id] = true
				}
				key := useKey{owner, c.Name, c.Image}
				all[key] = append(all[key], seenImage{id.digest, p.Template, p.Node})
			}
		}
	}
	return all
}

// architectures returns a function that tells the architecture of a node: by the newest snapshot that has the Node.
// For an unknown node it is the architecture of all others, or empty if these differ.
func architectures(history []snapshot.Snapshot) func(node string) string {
	archs, kinds := map[string]string{}, map[string]bool{}
	for _, s := range history {
		for _, n := range s.Nodes.Items {
			archs[n.Name], kinds[n.Arch] = n.Arch, true
		}
	}
	return func(node string) string {
		arch, there := archs[node]
		if !there && len(kinds) == 1 {
			return slices.Collect(maps.Keys(kinds))[0]
		}
		return arch
	}
}

// drift judges one container: image is the reference in its spec, seen is what
// ran under that reference, and arch tells the architecture of a node.
func drift(u imageUse, image string, seen []seenImage, arch func(string) string, view *view, x *Index) (Finding, bool) {
	digests, on := map[string]bool{}, map[string]map[string]bool{} // of all, and on each architecture
	for _, s := range seen {
		digests[s.digest] = true
		add(on, arch(s.node), s.digest)
	}
	if len(digests) < 2 {
		return Finding{}, false
	}
	drifted := func(node string) bool { return len(on[arch(node)]) > 1 }
	all := seen
	seen = slices.DeleteFunc(slices.Clone(all), func(s seenImage) bool { return !drifted(s.node) })
	if len(seen) == 0 {
		return onEachArchitecture(u, image, all, arch), true
	}
	templates := map[string]map[string]bool{} // by architecture as well
	newest := map[string]string{}             // on each architecture: what was not intended
	for _, s := range seen {
		newest[arch(s.node)] = s.digest
		if s.template != "" {
			add(templates, arch(s.node)+" "+s.template, s.digest)
		}
	}
	f := Finding{Kind: ChangedImage, State: Latent, Object: Named(u.String())}
	how := "at another revision of the workload with the same image reference"
	for _, digests := range templates {
		if len(digests) > 1 {
			f.Kind, how = MixedImages, "with the same pod template"
		}
	}
	running, ran := map[string][]string{}, map[string][]string{}
	var affected []string // nodes that run the newest image
	for _, p := range u.pods {
		if digest := x.pulled(*p.container); p.container.Image == image && digest != "" && drifted(p.pod.Node) {
			running[digest] = append(running[digest], p.pod.Node)
			if newest[arch(p.pod.Node)] == digest {
				f.Pods = append(f.Pods, p.pod.String())
				affected = append(affected, p.pod.Node)
			}
		}
	}
	for _, s := range seen {
		if running[s.digest] == nil {
			ran[s.digest] = append(ran[s.digest], s.node)
		}
	}
	f.Says = fmt.Sprintf("%s has image %s; with that reference %s", u, image, sayImages(running, "runs", "run"))
	if len(ran) > 0 {
		f.Says += ", and earlier " + sayImages(ran, "ran", "ran")
	}
	f.Says += ", " + how
	for _, node := range affected {
		for _, r := range view.routersWithout(node) {
			f.State = Active
			if !slices.Contains(f.Routers, r) {
				f.Routers = append(f.Routers, r)
			}
		}
	}
	if f.State == Active {
		f.Says += fmt.Sprintf("; %s no route to the pods on the nodes with the newer image", do(f.Routers, "has", "have"))
	}
	f.Says += "."
	return f, true
}

func onEachArchitecture(u imageUse, image string, seen []seenImage, arch func(string) string) Finding {
	running := map[string][]string{}
	for _, s := range seen {
		running[s.digest] = append(running[s.digest], arch(s.node))
	}
	return Finding{
		Kind: ArchImages, State: Hint, Object: Named(u.String()),
		Says: fmt.Sprintf("%s has image %s; with that reference %s: an image of several architectures, "+
			"or a tag that was moved before nodes of one of them pulled it.", u, image, sayImages(running, "nodes run", "nodes run")),
	}
}

func add(sets map[string]map[string]bool, key, value string) {
	if sets[key] == nil {
		sets[key] = map[string]bool{}
	}
	sets[key][value] = true
}

// routersWithout names the routers that are expected to have a node's ranges and lack one. It names none if the
// ranges are not known.
func (v *view) routersWithout(node string) []string {
	if !v.rangesKnown {
		return nil
	}
	var routers []string
	for _, p := range v.ranges[node] {
		for _, r := range v.routers {
			if complete(r.Router) && !v.covered(r, p) && v.unexpected(r, node, p) == "" {
				routers = append(routers, r.Name)
			}
		}
	}
	return each.Once(routers)
}
