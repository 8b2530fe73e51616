package detect

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of ImagePin. They are latent for programs that the network depends on, else hints: running pods
// are not affected.
const (
	// Untagged: an image without tag and digest, which means latest.
	Untagged = "untagged"
	// LatestTag: an image with the tag latest.
	LatestTag = "latest-tag"
	// MovedTag: an image without digest whose reference resolves to another image
	// in the registry than the one that runs.
	MovedTag = "moved-tag"
)

// ImagePin finds images that a restart may replace, before one does. It examines the templates of workloads, and pods
// without a template: static pods, and pods without an owner.
type ImagePin struct{}

func (ImagePin) Name() string { return "image-pin" }

func (ImagePin) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Workloads, snapshot.RunningImages, snapshot.Tags}
}

// Detect implements Detector. Findings are in order of workload, one for each container and kind.
func (d ImagePin) Detect(history []snapshot.Snapshot, x *Index) []Finding {
	now := history[len(history)-1]
	uses := imageUses(now)
	tags := map[string]string{}
	for _, t := range now.Tags.Items {
		tags[t.Image] = t.Digest
	}
	var findings []Finding
	add := func(u imageUse, kind, says string) {
		state := Hint
		if u.networks() {
			state = Latent
		}
		findings = append(findings, Finding{
			Kind: kind, State: state, Object: Named(u.String()), Says: says,
			Pods: each.Of(u.pods, func(p runningImage) string { return p.pod.String() }),
		})
	}
	for _, u := range uses {
		ref, err := snapshot.ParseReference(u.container.Image)
		if err != nil || ref.Digest != "" {
			continue // no node can pull a name that does not parse, and a digest always names the same image
		}
		asks := fmt.Sprintf("%s has image %s", u, u.container.Image)
		switch ref.Tag {
		case "":
			add(u, Untagged, fmt.Sprintf("%s, without tag or digest: the image that latest refers to is pulled %s.", asks, u.when()))
		case "latest":
			add(u, LatestTag, fmt.Sprintf("%s: the image that latest refers to is pulled %s.", asks, u.when()))
		}
		served := tags[u.container.Image]
		running := u.runningOtherThan(served, x)
		if served == "" || len(running) == 0 {
			continue
		}
		add(u, MovedTag, fmt.Sprintf("%s. The registry now has %s under that reference, but %s: the image is replaced %s.",
			asks, short(served), sayImages(running, "runs", "run"), u.when()))
	}
	return findings
}

// imageUse is one container of a workload, or of a pod without one, with all pods that it is in.
type imageUse struct {
	owner     string // such as DaemonSet kube-system/kube-router
	host      bool   // in the nodes' network
	container snapshot.Container
	pods      []runningImage
}

// networking are parts of the names of programs that a cluster's network depends on, and that are not always in
// the nodes' network.
var networking = regexp.MustCompile(`(?i)\b(antrea|calico|canal|cilium|coredns|flannel|frr|hubble|kube-dns|kube-ovn|kube-proxy|` +
	`kube-router|kube-vip|metallb|multus|node-?local-?dns|ovn|ovs|tigera|typha|weave|whereabouts)`)

func (u imageUse) networks() bool {
	return u.host || networking.MatchString(u.owner) || networking.MatchString(path.Base(u.container.Image))
}

// runningImage is the container in one pod. It may differ from the template: the pod may be older.
type runningImage struct {
	pod       *snapshot.PodImages
	container *snapshot.RunningContainer
}

func (u imageUse) String() string {
	return u.owner + ", " + u.container.Kind() + " " + u.container.Name
}

func (u imageUse) when() string {
	switch u.container.PullPolicy {
	case "Never":
		return "on a node that has it"
	case "IfNotPresent":
		return "when a pod starts on a node that does not have it"
	}
	return "when a pod starts"
}

// runningOtherThan returns the nodes that run another image under the image's name, by its digest. A node whose
// status lacks the digest is left out.
func (u imageUse) runningOtherThan(digest string, x *Index) map[string][]string {
	nodes := map[string][]string{}
	for _, p := range u.pods {
		if got := x.pulled(*p.container); p.container.Image == u.container.Image && got != "" && got != digest {
			nodes[got] = append(nodes[got], p.pod.Node)
		}
	}
	return nodes
}

// imageUses lists the containers of a snapshot in order of owner, with the pods that they are in.
func imageUses(s snapshot.Snapshot) []imageUse {
	var uses []imageUse
	type key struct{ owner, container string }
	places := map[key]int{}
	add := func(owner string, host bool, c snapshot.Container) int {
		uses = append(uses, imageUse{owner: owner, host: host, container: c})
		if _, there := places[key{owner, c.Name}]; !there {
			places[key{owner, c.Name}] = len(uses) - 1
		}
		return len(uses) - 1
	}
	for _, w := range s.Workloads.Items {
		for _, c := range w.Containers {
			add(w.Kind+" "+w.Namespace+"/"+w.Name, w.HostNetwork, c)
		}
	}
	for i := range s.PodImages.Items {
		p := &s.PodImages.Items[i]
		owner := ownerOf(*p)
		for j := range p.Containers {
			c := &p.Containers[j]
			at, there := places[key{owner, c.Name}]
			if !there {
				// The pod's owner is of a kind that Workloads does not list.
				at = add(owner, p.HostNetwork, c.Container)
			}
			uses[at].pods = append(uses[at].pods, runningImage{p, c})
		}
	}
	slices.SortStableFunc(uses, func(a, b imageUse) int { return strings.Compare(a.owner, b.owner) })
	return uses
}

func ownerOf(p snapshot.PodImages) string {
	switch p.OwnerKind {
	case "":
		return "Pod " + p.String()
	case "Node":
		return "static Pod " + p.String()
	}
	return p.OwnerKind + " " + p.Namespace + "/" + p.OwnerName
}

// shortDigest is long enough to distinguish digests by eye.
const shortDigest = len("sha256:") + 12

func short(digest string) string { return digest[:min(len(digest), shortDigest)] }

func sayImages(nodes map[string][]string, one, many string) string {
	var says []string
	for digest, on := range nodes {
		on = each.Once(on)
		says = append(says, do(on, one, many)+" "+short(digest))
	}
	slices.Sort(says)
	return strings.Join(says, ", ")
}
