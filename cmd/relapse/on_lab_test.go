//go:build lab && night

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"go.yaml.in/yaml/v3"
	kind "sigs.k8s.io/kind/pkg/cluster"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

const onWithin = 10 * time.Minute

// onLab is a lab that containerlab has deployed from the exported folder of a scenario.
type onLab struct {
	*testing.T
	docker        *client.Client
	scenario, dir string
}

// TestOnContainerlab exports each scenario that may run on another lab, deploys it by containerlab with the images of
// this tree, and runs it there. Runs pass, and restore objects, routes, links, rules, sysctls, files and containers.
func TestOnContainerlab(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("labs need root")
	}
	docker := dockerEngine(t)
	path := buildContainerlab(t) + ":" + os.Getenv("PATH")
	for _, s := range scenarios.All {
		if !s.Foreign {
			continue
		}
		t.Run(s.Incident.Name, func(t *testing.T) {
			l := deploy(t, docker, s.Incident.Name, path)
			before := l.state()
			if l.scenario == scenario {
				l.refuses(before)
			}
			l.passes("the run", before, "--on", l.dir)
			if l.scenario == scenario {
				l.byKubeconfig(before)
			}
		})
	}
}

// deploy deploys the exported folder of a scenario until the test ends.
func deploy(t *testing.T, docker *client.Client, name, path string) onLab {
	l := onLab{t, docker, name, t.TempDir()}
	relapse(t, "describe", name, "--containerlab", l.dir).prints(t, exitExpected)
	l.withImagesOfThisTree()
	hadNetwork := dockerHas(t, docker, "kind")
	script := func(command string) {
		cmd := exec.Command(filepath.Join(l.dir, "lab.sh"), command)
		cmd.Env = append(os.Environ(), "PATH="+path, "CLAB_VERSION_CHECK=disable", "KUBECONFIG="+filepath.Join(l.dir, "kubeconfig")) // kind writes it
		out, err := cmd.CombinedOutput()
		t.Logf("lab.sh %s:\n%s", command, out)
		if err != nil || bytes.Contains(out, []byte("level=error")) { // containerlab succeeds if a command fails
			t.Fatalf("lab.sh %s: %v, or it reports errors", command, err)
		}
	}
	t.Cleanup(func() {
		script("down")
		must.Equal(t, "left by containerlab and kind", nil, l.containers())
		if !hadNetwork && dockerHas(t, docker, "kind") { // kind leaves it
			must.Get(docker.NetworkRemove(context.WithoutCancel(t.Context()), "kind", client.NetworkRemoveOptions{}))(t)
		}
	})
	script("up")
	return l
}

// refuses checks that runs on a wrong lab, or without a lab, are refused.
func (l onLab) refuses(before map[string][]string) {
	kubectl := func(args ...string) {
		inContainer(l.T, "k8s-control-plane", append([]string{"kubectl", "--kubeconfig=/etc/kubernetes/admin.conf"}, args...)...)
	}
	refused := func(title, name string, status int, on []string, want ...string) {
		l.Run(title, func(t *testing.T) {
			relapse(t, append([]string{"run", name, "--output", t.TempDir(), "--on"}, on...)...).complains(t, status, want...)
		})
	}
	folder, kubeconfig := []string{l.dir}, l.kubeconfig()
	kubectl("label", "namespace", "kube-system", "relapse.dev/lab-")
	refused("a cluster that nobody calls a lab", l.scenario, exitUsage, folder, "nothing says that this cluster is a lab")
	kubectl("label", "namespace", "kube-system", "relapse.dev/lab=true")
	refused("a scenario for labs of relapse alone", "lost-permission", exitMachine, folder, "scenario lost-permission runs on relapse's own labs alone: whole Cilium leaves")
	inContainer(l.T, "k8s-worker", "touch", "/etc/cni/net.d/10-x.conflist")
	inContainer(l.T, "k8s-worker2", "ip", "route", "add", "default", "via", "10.4.94.239", "metric", "9")
	inContainer(l.T, "clab-node-drain-tor1", "ip", "address", "delete", "10.4.94.239/24", "dev", "eth1")
	refused("a lab that does not fit", l.scenario, exitMachine, folder,
		"node master3: it has a CNI configuration, /etc/cni/net.d/10-x.conflist", "router tor1: address 10.4.94.239 on network nodes",
		"node master2: a default route via [10.4.94.238 10.4.94.239] and nothing else")
	refused("routers by addresses that they do not have", l.scenario, exitMachine, kubeconfig, "router tor1: the file of the routers has none of that name, or with its addresses")
	inContainer(l.T, "k8s-worker", "rm", "/etc/cni/net.d/10-x.conflist")
	inContainer(l.T, "k8s-worker2", "ip", "route", "delete", "default", "via", "10.4.94.239", "metric", "9")
	inContainer(l.T, "clab-node-drain-tor1", "ip", "address", "add", "10.4.94.239/24", "dev", "eth1")
	rename := func(from, to string) {
		must.Get(l.docker.ContainerRename(l.Context(), from, client.ContainerRenameOptions{NewName: to}))(l)
	}
	rename("k8s-worker", "k8s-elsewhere")
	refused("a cluster with a node that is not on this machine", l.scenario, exitMachine, kubeconfig, "node master3: it is no container of this machine's Docker: ")
	rename("k8s-worker2", "k8s-worker")
	refused("a node of another cluster with the same names", l.scenario, exitMachine, kubeconfig, "node master3: it is no container of this machine's Docker: container k8s-worker has machine ID ")
	rename("k8s-worker", "k8s-worker2")
	rename("k8s-elsewhere", "k8s-worker")
	same(l.T, "refused runs", before, l.state())
}

// byKubeconfig runs the affected variant on the same lab, by a kubeconfig and a file with other names of the routers:
// routers and host are found by their addresses.
func (l onLab) byKubeconfig(before map[string][]string) {
	declared := must.Get(scenarioNamed(l.scenario))(l)
	l.passes("the run by a kubeconfig", before, append([]string{"--variant", declared.Variants[0].Name, "--on"}, l.kubeconfig()...)...)
}

// kubeconfig writes a kubeconfig and a file of routers, and returns the arguments of --on.
func (l onLab) kubeconfig() []string {
	kubeconfig, routers := filepath.Join(l.TempDir(), "config"), filepath.Join(l.TempDir(), "routers.yml")
	must.Write(l, kubeconfig, must.Get(kind.NewProvider(kind.ProviderWithDocker()).KubeConfig("k8s", false))(l))
	must.Write(l, routers, `- {name: leaf-a, kind: frr, command: [docker, exec, clab-node-drain-tor2]}
- {name: leaf-b, kind: frr, command: [docker, exec, clab-node-drain-tor1]}
`)
	return []string{kubeconfig, "--routers", routers}
}

func (l onLab) passes(what string, before map[string][]string, args ...string) {
	began := time.Now()
	s := start(l.T, nil, append([]string{"run", l.scenario}, args...)...)
	s.ends(exitExpected, onWithin)
	must.Equal(l, what, "pass", s.report().Verdict)
	l.Logf("%s took %s", what, time.Since(began).Round(time.Second))
	same(l.T, what, before, l.state())
}

func same(t *testing.T, what string, before, after map[string][]string) {
	t.Helper()
	for _, place := range slices.Sorted(maps.Keys(before)) {
		for _, line := range before[place] {
			must.Equal(t, what+" took away from "+place+": "+line, false, !slices.Contains(after[place], line))
		}
		for _, line := range after[place] {
			must.Equal(t, what+" left at "+place+": "+line, false, !slices.Contains(before[place], line))
		}
	}
}

// containers are the names of this lab's containers: of containerlab, of kind, and of relapse.
func (l onLab) containers() []string {
	l.Helper()
	all := must.Get(l.docker.ContainerList(context.WithoutCancel(l.Context()), client.ContainerListOptions{All: true}))(l).Items
	var names []string
	for _, c := range all {
		name := strings.TrimPrefix(c.Names[0], "/")
		if strings.HasPrefix(name, "clab-"+l.scenario+"-") || c.Labels["io.x-k8s.kind.cluster"] == "k8s" || strings.HasPrefix(name, "relapse-"+l.scenario+"-") {
			names = append(names, name+" "+c.ID+" "+string(c.State))
		}
	}
	return names
}

// state is the state of the lab by its place, as printed by the programs of the lab.
func (l onLab) state() map[string][]string {
	l.Helper()
	state := map[string][]string{"containers": l.containers()}
	objects := `for type in $(kubectl api-resources --verbs=list,delete -o name); do
		case $type in events*|endpoints*|apiservices*) continue;; esac
		kubectl get $type --all-namespaces --no-headers -o custom-columns=N:.metadata.namespace,M:.metadata.name | sed "s/^/$type /"
	done
	kubectl get nodes -o custom-columns=N:.metadata.name,R:.spec.podCIDRs,U:.spec.unschedulable`
	lines := func(container, script string) []string {
		return strings.Split(strings.TrimSpace(inContainer(l.T, container, "sh", "-ec", script)), "\n")
	}
	state["cluster"] = lines("k8s-control-plane", "export KUBECONFIG=/etc/kubernetes/admin.conf; "+objects)
	for _, c := range state["containers"] {
		name, _, _ := strings.Cut(c, " ")
		// Without indexes: a link that is created again has a new one.
		const links = `; ip -o link | sed -E "s/^[0-9]+: //; s/[@:].*//"`
		addresses := `{ ip -4 route; ip -4 -o address | sed -E "s/^[0-9]+: //; s/valid_lft.*//"; }`
		if strings.HasPrefix(name, "k8s-") {
			addresses += ` | sed "/eth0/d"` // Docker chooses the address on kind's network at each start
		}
		script := addresses + links
		if strings.HasPrefix(name, "k8s-") {
			script += `; for f in iptables ip6tables; do $f-save | sed "/^[#:]/d; s/^/$f /"; done; nft list tables
			sysctl -a 2>/dev/null | grep "^net" | grep -vE "nf_conntrack_count|stable_secret"
			find /etc/cni /opt/cni /etc/containerd /kind /run/relapse 2>/dev/null || true; crictl images; ip rule; tc qdisc show dev eth0; tc qdisc show dev eth1`
		}
		if strings.Contains(name, "-tor") {
			script += `; vtysh -c "show running-config"`
		}
		state[name] = lines(name, script)
	}
	return state
}

func inContainer(t *testing.T, name string, command ...string) string {
	t.Helper()
	got := end(t, exec.Command("docker", append([]string{"exec", name}, command...)...))
	if got.status != 0 {
		t.Fatalf("%s in %s: %+v", command, name, got)
	}
	return got.stdout
}

func dockerHas(t *testing.T, docker *client.Client, name string) bool {
	t.Helper()
	_, err := docker.NetworkInspect(context.WithoutCancel(t.Context()), name, client.NetworkInspectOptions{})
	return err == nil
}

// buildContainerlab builds containerlab from its module, and returns the folder of the program. One of its dependencies
// is no longer available, and one has another name. It must not read /proc/modules, which some machines do not have.
func buildContainerlab(t *testing.T) string {
	t.Helper()
	const module = "github.com/srl-labs/containerlab@v0.60.0"
	run := func(dir string, args ...string) []byte {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		got := end(t, cmd)
		if got.status != 0 {
			t.Fatalf("go %q: %+v", args, got)
		}
		return []byte(got.stdout)
	}
	var found struct{ Dir string }
	must.NoError(t, json.Unmarshal(run(t.TempDir(), "mod", "download", "-json", module), &found))
	dir := filepath.Join(t.TempDir(), "containerlab")
	must.NoError(t, os.CopyFS(dir, os.DirFS(found.Dir)))
	must.NoError(t, os.CopyFS(filepath.Join(dir, "netaddr"), os.DirFS("testdata/netaddr")))
	edit := func(name string, change func(string) string) {
		path := filepath.Join(dir, name)
		text := must.Read(t, path)
		must.NoError(t, os.Chmod(path, 0o644)) // it is read-only, as files of the module cache are
		must.Write(t, path, change(string(text)))
	}
	edit("go.mod", func(text string) string {
		return text + "\nreplace inet.af/netaddr => ./netaddr\n\nreplace vbom.ml/util => github.com/fvbommel/util v0.0.3\n"
	})
	must.NoError(t, os.Chmod(filepath.Join(dir, "go.sum"), 0o644)) // the replaced modules are added
	if _, err := os.Stat("/proc/modules"); err != nil {
		t.Log("this machine has no /proc/modules: containerlab is changed to do without")
		edit("utils/kernel_module.go", func(text string) string {
			const open = `f, err := os.Open("/proc/modules")`
			must.Contain(t, text, open)
			return strings.Replace(text, open, open+"\n\tif os.IsNotExist(err) {\n\t\treturn true, nil\n\t}", 1)
		})
	}
	bin := t.TempDir()
	run(dir, "build", "-mod=mod", "-o", filepath.Join(bin, "containerlab"), ".")
	return bin
}

const frrDaemons = `mkdir -p /run/frr /var/lib/frr; chown frr:frr /run/frr /var/lib/frr
for d in mgmtd zebra staticd bgpd; do /usr/lib/frr/$d & done
until vtysh -d bgpd -c "show version" && vtysh -d staticd -c "show version"; do sleep 0.1; done >/dev/null 2>&1
`

// withImagesOfThisTree replaces the images in a file of containerlab by images of this tree: no registry is needed.
// The image of FRR does not start its daemons by itself, so the command of the node does. The image of a node gets the
// images of the control plane, as kind's own image has them.
func (l onLab) withImagesOfThisTree() {
	t, docker, path := l.T, l.docker, filepath.Join(l.dir, l.scenario+".clab.yml")
	t.Helper()
	const (
		frr  = "relapse.dev/frr:10.3"
		host = "relapse.dev/host:dev"
	)
	declared := must.Get(scenarioNamed(l.scenario))(t)
	var node string
	var controlPlane []string
	for _, ref := range kindlab.ImagesOf(topology.Topology{Clusters: declared.Topology.Clusters}) {
		switch {
		case strings.HasPrefix(ref, "relapse.dev/node:"):
			node = ref
		case !kindlab.Ours(ref):
			controlPlane = append(controlPlane, ref)
		}
	}
	loaded := loadedImages(t, docker, append([]string{frr, host, node}, controlPlane...)...)
	full := nodeWithImages(t, docker, loaded, node, controlPlane)

	must.Write(t, filepath.Join(filepath.Dir(path), "frr", "start.sh"), frrDaemons+"vtysh -b\nwait")
	var file map[string]any
	must.NoError(t, yaml.Unmarshal(must.Read(t, path), &file))
	for _, n := range file["topology"].(map[string]any)["nodes"].(map[string]any) {
		n := n.(map[string]any)
		switch named, _ := n["image"].(string); {
		case n["kind"] == "k8s-kind":
			n["image"] = full
		case strings.Contains(named, "frr"):
			n["image"], n["entrypoint"], n["cmd"] = loaded[frr], "sh", "/start.sh"
			n["binds"] = append(n["binds"].([]any), "frr/start.sh:/start.sh")
		case named != "":
			n["image"] = loaded[host]
		}
	}
	must.Write(t, path, string(must.Get(yaml.Marshal(file))(t)))
}

// loadedImages builds images of this tree and loads them into Docker. It returns Docker's name of each.
func loadedImages(t *testing.T, docker *client.Client, refs ...string) map[string]string {
	t.Helper()
	catalogue := must.Get(images.Open("../.."))(t)
	must.Get(catalogue.Build(t.Context(), refs, nil))(t)
	loaded := map[string]string{}
	for _, ref := range refs {
		loaded[ref] = must.Get(catalogue.LoadDocker(t.Context(), docker, ref))(t)
	}
	return loaded
}

// nodeWithImages makes an image of a node with the control plane's images in its containerd, as in kind's images.
func nodeWithImages(t *testing.T, docker *client.Client, loaded map[string]string, node string, controlPlane []string) string {
	t.Helper()
	const name = "relapse.dev/node-with-images:test"
	ctx := context.WithoutCancel(t.Context())
	made := must.Get(docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: loaded[node], Entrypoint: []string{"containerd"}},
		HostConfig: &container.HostConfig{Privileged: true},
	}))(t)
	t.Cleanup(func() {
		must.Get(docker.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}))(t)
	})
	must.Get(docker.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}))(t)
	for _, ref := range controlPlane {
		must.Get(docker.ImageTag(ctx, client.ImageTagOptions{Source: loaded[ref], Target: ref}))(t)
		archive := must.Get(docker.ImageSave(ctx, []string{ref}))(t)
		load := exec.Command("docker", "exec", "--interactive", made.ID, "sh", "-c",
			"until ctr version >/dev/null 2>&1; do sleep 0.1; done; ctr -n k8s.io images import --no-unpack -")
		load.Stdin = archive
		out, err := load.CombinedOutput()
		archive.Close()
		if _, untag := docker.ImageRemove(ctx, ref, client.ImageRemoveOptions{}); untag != nil {
			t.Error(untag)
		}
		if err != nil {
			t.Fatalf("importing %s: %v: %s", ref, err, out)
		}
	}
	must.Get(docker.ContainerStop(ctx, made.ID, client.ContainerStopOptions{Signal: "SIGTERM"}))(t)
	must.Get(docker.ContainerCommit(ctx, made.ID, client.ContainerCommitOptions{
		Reference: name, NoPause: true, Changes: []string{`ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]`},
	}))(t)
	t.Cleanup(func() { must.Get(docker.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: true}))(t) })
	return name
}
