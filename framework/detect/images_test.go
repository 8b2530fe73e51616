package detect

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	oldDigest = "sha256:" + strings.Repeat("1", 64)
	newDigest = "sha256:" + strings.Repeat("2", 64)
)

const routerImage = "docker.io/cloudnativelabs/kube-router"

// imageWorld is a snapshot in the making: three nodes with routes on a ToR,
// and a DaemonSet kube-router on them.
type imageWorld struct{ snapshot.Snapshot }

func kubeRouters(image string) *imageWorld {
	w := &imageWorld{}
	w.Time = start
	w.Nodes.Read, w.CiliumNodes.Read, w.Workloads.Read, w.PodImages.Read, w.Tags.Read = true, true, true, true, true
	w.Routers = []snapshot.Router{readRouter("tor")}
	w.workload("DaemonSet", "kube-router", asks("kube-router", image))
	for i, node := range []string{"master", "worker1", "worker2"} {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 20, byte(64 + i), 0}), 24)
		w.Nodes.Items = append(w.Nodes.Items, snapshot.Node{Name: node, Ready: true, PodCIDRs: []netip.Prefix{p}})
		w.route(p)
		w.pod("DaemonSet", "kube-router", node, "rev1", runs(asks("kube-router", image), oldDigest))
	}
	return w
}

func asks(name, image string) snapshot.Container {
	return snapshot.Container{Name: name, Image: image, PullPolicy: "Always"}
}

func runs(c snapshot.Container, digest string) snapshot.RunningContainer {
	r := snapshot.RunningContainer{Container: c}
	if digest != "" {
		ref, err := snapshot.ParseReference(c.Image)
		if err != nil {
			panic(err) // a test's own name is wrong
		}
		r.ImageID = ref.Name + "@" + digest
	}
	return r
}

func (w *imageWorld) workload(kind, name string, containers ...snapshot.Container) {
	w.Workloads.Items = append(w.Workloads.Items, snapshot.Workload{Kind: kind, Namespace: "kube-system", Name: name, Containers: containers})
}

// pod adds a pod that is a second younger than the one before it.
func (w *imageWorld) pod(kind, owner, node, template string, containers ...snapshot.RunningContainer) {
	name := owner + "-" + node + "-" + template
	w.PodImages.Items = append(w.PodImages.Items, snapshot.PodImages{
		Namespace: "kube-system", Name: name, UID: name, Node: node, OwnerKind: kind, OwnerName: owner, Template: template,
		Created: start.Add(time.Duration(len(w.PodImages.Items)) * time.Second), Containers: containers,
	})
}

// replace is what a rollout does to one pod of kube-router.
func (w *imageWorld) replace(i int, template, image, digest string) {
	w.pod("DaemonSet", "kube-router", w.PodImages.Items[i].Node, template, runs(asks("kube-router", image), digest))
	all, last := w.PodImages.Items, len(w.PodImages.Items)-1
	all[last].Created = start.Add(time.Minute + time.Duration(i)*time.Second)
	w.PodImages.Items = slices.Concat(all[:i], all[last:], all[i+1:last])
}

func (w *imageWorld) route(p netip.Prefix) {
	w.Routers[0].Paths.Items = append(w.Routers[0].Paths.Items, snapshot.Path{Prefix: p, Neighbor: addr("10.20.4.11"), NextHop: addr("10.20.4.11"), Best: true})
}

func (w *imageWorld) serves(image, digest string) *imageWorld {
	w.Tags.Items = append(w.Tags.Items, snapshot.Tag{Image: image, Digest: digest})
	return w
}

func (w *imageWorld) but(change func(*imageWorld)) *imageWorld {
	change(w)
	return w
}

type brief struct {
	Kind   string
	State  State
	Object string
	Pods   int
}

func briefs(findings []Finding) []brief {
	return each.Of(findings, func(f Finding) brief { return brief{f.Kind, f.State, f.Object.String(), len(f.Pods)} })
}

// compareBriefs compares findings with briefs of them, and unless says is empty, the sentence of the first with it.
func compareBriefs(t *testing.T, found []Finding, want []brief, says string, as func(sentence, says string) bool) {
	t.Helper()
	must.Equal(t, "", want, briefs(found))
	if says != "" && len(found) > 0 && !as(found[0].Says, says) {
		t.Errorf("says  %s\nwants %s", found[0].Says, says)
	}
}

func same(sentence, says string) bool { return sentence == says }

const routerObject = "DaemonSet kube-system/kube-router, container kube-router"

func TestImagePin(t *testing.T) {
	pinned, v151 := routerImage+"@"+oldDigest, routerImage+":v1.5.1"
	for _, tt := range []struct {
		name  string
		world *imageWorld
		want  []brief
		says  string
	}{
		{"no tag", kubeRouters(routerImage), []brief{{Untagged, Latent, routerObject, 3}},
			"DaemonSet kube-system/kube-router, container kube-router has image docker.io/cloudnativelabs/kube-router, without tag or digest: the image that latest refers to is pulled when a pod starts."},
		{"latest", kubeRouters(routerImage + ":latest"), []brief{{LatestTag, Latent, routerObject, 3}}, ""},
		{"a tag that has not moved", kubeRouters(v151).serves(v151, oldDigest), nil, ""},
		{"a tag that has moved", kubeRouters(routerImage+":v1.5").serves(routerImage+":v1.5", newDigest), []brief{{MovedTag, Latent, routerObject, 3}},
			"DaemonSet kube-system/kube-router, container kube-router has image docker.io/cloudnativelabs/kube-router:v1.5. The registry now has sha256:222222222222 under that reference, but master, worker1 and worker2 run sha256:111111111111: the image is replaced when a pod starts."},
		{"no tag, and latest has moved", kubeRouters(routerImage).serves(routerImage, newDigest), []brief{{Untagged, Latent, routerObject, 3}, {MovedTag, Latent, routerObject, 3}}, ""},
		{"a digest", kubeRouters(pinned).serves(pinned, newDigest), nil, ""},
		{"a tag and a digest: the digest counts", kubeRouters(routerImage + ":latest@" + oldDigest), nil, ""},
		{"a registry that was not asked", kubeRouters(v151), nil, ""},
		{"a registry that does not know the tag", kubeRouters(v151).but(func(w *imageWorld) {
			w.Tags.Items = []snapshot.Tag{{Image: v151, Error: "MANIFEST_UNKNOWN"}}
		}), nil, ""},
		{"a node that does not tell what it pulled", kubeRouters(v151).serves(v151, oldDigest).but(func(w *imageWorld) {
			w.PodImages.Items[1].Containers[0].ImageID = newDigest // of the configuration
		}), nil, ""},
		{"pods of an older template do not count", kubeRouters(pinned).but(func(w *imageWorld) { w.replace(0, "rev0", routerImage, newDigest) }), nil, ""},
		{"init container, several containers, pulled where missing", new(imageWorld).but(func(w *imageWorld) {
			init := asks("install-cni", routerImage)
			init.Init, init.PullPolicy = true, "IfNotPresent"
			w.workload("DaemonSet", "kube-router", init, asks("kube-router", pinned), asks("exporter", "exporter:latest"))
		}), []brief{
			{Untagged, Latent, "DaemonSet kube-system/kube-router, init container install-cni", 0},
			{LatestTag, Latent, "DaemonSet kube-system/kube-router, container exporter", 0},
		}, ""},
		{"a workload without pods, pulled where missing", new(imageWorld).but(func(w *imageWorld) {
			c := asks("web", "web")
			c.PullPolicy = "IfNotPresent"
			w.workload("Deployment", "web", c)
		}), []brief{{Untagged, Hint, "Deployment kube-system/web, container web", 0}},
			"Deployment kube-system/web, container web has image web, without tag or digest: the image that latest refers to is pulled when a pod starts on a node that does not have it."},
		{"a static pod, and one that nobody owns", new(imageWorld).serves("busybox:latest", oldDigest).but(func(w *imageWorld) {
			w.pod("Node", "etcd", "master", "", runs(asks("etcd", "etcd"), oldDigest))
			w.PodImages.Items[0].HostNetwork = true
			w.pod("", "debug", "master", "", runs(asks("sh", "busybox:latest"), oldDigest))
		}), []brief{
			{LatestTag, Hint, "Pod kube-system/debug-master-, container sh", 1},
			{Untagged, Latent, "static Pod kube-system/etcd-master-, container etcd", 1},
		}, ""},
		{"workloads of the network, by their image or host network, and a CronJob", new(imageWorld).but(func(w *imageWorld) {
			w.workload("Deployment", "dns", asks("dns", "registry.example/mirrored-coredns-coredns:latest"))
			w.workload("Deployment", "frontend", asks("web", "registry.example/ovens:latest"))
			w.workload("DaemonSet", "agent", asks("agent", "registry.example/agent:latest"))
			w.Workloads.Items[2].HostNetwork = true
			w.pod("CronJob", "backup", "worker1", "", runs(asks("backup", "backup:latest"), oldDigest))
		}), []brief{
			{LatestTag, Hint, "CronJob kube-system/backup, container backup", 1},
			{LatestTag, Latent, "DaemonSet kube-system/agent, container agent", 0},
			{LatestTag, Latent, "Deployment kube-system/dns, container dns", 0},
			{LatestTag, Hint, "Deployment kube-system/frontend, container web", 0},
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			compareBriefs(t, detected(t, ImagePin{}, []snapshot.Snapshot{tt.world.Snapshot}), tt.want, tt.says, same)
		})
	}
}

func TestImageDrift(t *testing.T) {
	pinned := routerImage + "@" + oldDigest
	// Each step changes what the step before has left; a snapshot is taken after each.
	type step func(*imageWorld)
	roll := func(i int, template, image, digest string) step {
		return func(w *imageWorld) { w.replace(i, template, image, digest) }
	}
	arches := func(arch ...string) step {
		return func(w *imageWorld) {
			w.Nodes.Items = slices.Clone(w.Nodes.Items)
			for i := range w.Nodes.Items {
				w.Nodes.Items[i].Arch = arch[i]
			}
		}
	}
	const says = "DaemonSet kube-system/kube-router, container kube-router has image " + routerImage + "; with that reference "
	const anew = ", at another revision of the workload with the same image reference"
	rev2 := func(i int) step { return roll(i, "rev2", routerImage, newDigest) }
	routes := func(edit func([]snapshot.Path) []snapshot.Path) step {
		return func(w *imageWorld) { w.Routers[0].Paths.Items = edit(slices.Clone(w.Routers[0].Paths.Items)) }
	}
	running := func(change func([]snapshot.PodImages)) step {
		return func(w *imageWorld) {
			w.PodImages.Items = slices.Clone(w.PodImages.Items)
			change(w.PodImages.Items)
		}
	}
	two := func(kind string, nodes []string, container snapshot.Container, template string) step {
		return func(w *imageWorld) {
			w.pod(kind, container.Name, nodes[0], template, runs(container, oldDigest))
			w.pod(kind, container.Name, nodes[1], template, runs(container, newDigest))
		}
	}
	found := func(kind string, state State, pods int) []brief { return []brief{{kind, state, routerObject, pods}} }
	for _, tt := range []struct {
		name  string
		image string
		steps []step
		want  []brief
		says  string
	}{
		{"all the same", routerImage, nil, nil, ""},
		{"one pod of a new revision", routerImage, []step{rev2(1)}, found(ChangedImage, Latent, 1),
			says + "master and worker2 run sha256:111111111111, worker1 runs sha256:222222222222" + anew + "."},
		{"all of a new revision: the past tells", routerImage, []step{rev2(0), rev2(1), rev2(2)}, found(ChangedImage, Latent, 3),
			says + "master, worker1 and worker2 run sha256:222222222222, " +
				"and earlier master, worker1 and worker2 ran sha256:111111111111" + anew + "."},
		{"a node without route runs the newer one", routerImage,
			[]step{rev2(1), routes(func(all []snapshot.Path) []snapshot.Path { return slices.Delete(all, 1, 2) })}, found(ChangedImage, Active, 1),
			says + "master and worker2 run sha256:111111111111, worker1 runs sha256:222222222222" + anew +
				"; tor has no route to the pods on the nodes with the newer image."},
		{"a node without route runs the older one", routerImage,
			[]step{rev2(1), routes(func(all []snapshot.Path) []snapshot.Path { return all[1:] })}, found(ChangedImage, Latent, 1), ""},
		{"whether there is a route is not known", routerImage,
			[]step{rev2(1), func(w *imageWorld) { w.Routers = []snapshot.Router{{Name: "tor"}} }}, found(ChangedImage, Latent, 1), ""},
		{"under one template", routerImage, []step{roll(2, "rev1", routerImage, newDigest)}, found(MixedImages, Latent, 1),
			says + "master and worker1 run sha256:111111111111, worker2 runs sha256:222222222222, with the same pod template."},
		{"the image field changes with the image", routerImage,
			[]step{roll(0, "rev2", pinned, newDigest), roll(1, "rev2", pinned, newDigest), roll(2, "rev2", pinned, newDigest)}, nil, ""},
		{"a container is created", routerImage, []step{roll(0, "rev2", routerImage, "")}, nil, ""},
		{"a node does not tell what it pulled", routerImage, []step{func(w *imageWorld) {
			w.replace(0, "rev1", routerImage, newDigest)
			w.PodImages.Items[0].Containers[0].ImageID = newDigest
		}}, nil, ""},
		{"a container that is restarted in its pod", routerImage, []step{running(func(pods []snapshot.PodImages) {
			pods[0].Containers = []snapshot.RunningContainer{runs(asks("kube-router", routerImage), newDigest)}
		})}, found(MixedImages, Latent, 1), ""},
		{"another container of the pods", pinned, []step{running(func(pods []snapshot.PodImages) {
			for i, digest := range []string{oldDigest, oldDigest, newDigest} {
				init := runs(snapshot.Container{Name: "install-cni", Init: true, Image: routerImage}, digest)
				pods[i].Containers = append([]snapshot.RunningContainer{init}, pods[i].Containers...)
			}
		})}, []brief{{MixedImages, Latent, "DaemonSet kube-system/kube-router, init container install-cni", 1}}, ""},
		{"one image of two architectures", pinned,
			[]step{arches("amd64", "amd64", "arm64"), two("DaemonSet", []string{"master", "worker2"}, asks("exporter", "exporter:1"), "rev1")},
			[]brief{{ArchImages, Hint, "DaemonSet kube-system/exporter, container exporter", 0}},
			"DaemonSet kube-system/exporter, container exporter has image exporter:1; with that reference amd64 nodes run sha256:111111111111, arm64 nodes run sha256:222222222222: an image of several architectures, or a tag that was moved before nodes of one of them pulled it."},
		{"two images on one of two architectures", routerImage,
			[]step{arches("amd64", "amd64", "arm64"), roll(1, "rev1", routerImage, newDigest)}, found(MixedImages, Latent, 1),
			says + "master runs sha256:111111111111, worker1 runs sha256:222222222222, with the same pod template."},
		{"the second of two architectures gets another image", routerImage,
			[]step{arches("amd64", "amd64", "arm64"), rev2(2)}, found(ChangedImage, Latent, 1), ""},
		{"static pods are each their own", pinned, []step{two("Node", []string{"master", "worker1"}, asks("etcd", "etcd:3"), "")}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := kubeRouters(tt.image)
			history := []snapshot.Snapshot{w.copy()}
			for _, s := range tt.steps {
				s(w)
				history = append(history, w.copy())
			}
			compareBriefs(t, detected(t, ImageDrift{}, history), tt.want, tt.says, same)
		})
	}
}

// copy is a snapshot that later steps do not change.
func (w *imageWorld) copy() snapshot.Snapshot {
	s := w.Snapshot
	s.PodImages.Items, s.Routers = slices.Clone(s.PodImages.Items), slices.Clone(s.Routers)
	return s
}
