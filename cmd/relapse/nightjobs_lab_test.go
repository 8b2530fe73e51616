//go:build lab && night

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/plan"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// jobsCluster is what the Jobs of a plan run on: a control plane, and a node for each of
// two shards.
var jobsCluster = topology.Topology{
	Name: "night", Networks: []topology.Network{jobsNet},
	Clusters: []topology.Cluster{{
		NodeMask: 24, PodCIDR: netip.MustParsePrefix("10.230.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.97.0.0/16"),
		Nodes: []topology.Node{jobsNet.Node("first", 10), jobsNet.Node("worker1", 11), jobsNet.Node("worker2", 12)},
	}},
}.Behind(nil)

var jobsNet = topology.NewNetwork("nodes", "10.229.1.0/24")

// Folders in the nodes, which are folders of this machine.
const (
	nodeReports = "/relapse/reports"
	nodeCache   = "/relapse/cache"
)

// TestJobs runs a plan of two shards as Jobs of a cluster, whose pods have Docker engines and
// labs of their own. One pod is killed and one is evicted while it runs a variant.
func TestJobs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("labs need root")
	}
	names := []string{"node-drain", "twin-cidr"}
	night := upJobsCluster(t, names)
	planned := relapse(t, append([]string{"plan", "-o", "jobs", "--shards", "2", "--cache", "relapse-cache", "--image", "relapse.dev/relapse:dev"}, names...)...)
	if planned.status != exitExpected {
		t.Fatalf("%+v", planned)
	}
	var jobs []*batchv1.Job
	for text := range strings.SplitSeq(planned.stdout, "---\n") {
		job := &batchv1.Job{}
		must.NoError(t, yaml.UnmarshalStrict([]byte(text), job))
		job.Namespace = metav1.NamespaceDefault
		// Two pods share the CPUs of this machine, and each pod asks for all of them.
		runs := &job.Spec.Template.Spec.Containers[0]
		runs.Args = append(runs.Args, "--parallel=1")
		night.create(job)
		jobs = append(jobs, job)
	}

	night.until("both pods to be in their first variant", func() bool {
		pods := night.pods()
		return len(pods) == 2 && !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.NodeName == "" || !strings.Contains(night.said(p.Spec.NodeName), "baseline: ")
		})
	})
	pods := night.pods()
	if pods[0].Labels[batchv1.JobNameLabel] != jobs[0].Name {
		slices.Reverse(pods)
	}
	killed, evicted := pods[0], pods[1]
	// As the kernel kills it for lack of memory.
	if out, err := night.lab.Node(killed.Spec.NodeName).Exec(t.Context(), "sh", "-c", "crictl stop --timeout 0 $(crictl ps --quiet --name '^relapse$')"); err != nil {
		t.Fatalf("killing %s: %v\n%s", killed.Name, err, out)
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: evicted.Name, Namespace: evicted.Namespace}}
	if err := night.objects().GetControllerRuntimeClient().SubResource("eviction").Create(t.Context(), &evicted, eviction); err != nil {
		t.Fatalf("evicting %s: %v", evicted.Name, err)
	}

	night.until("the Jobs to end", func() bool { return !slices.ContainsFunc(jobs, func(j *batchv1.Job) bool { return !night.ended(j) }) })
	// Evicted pods do not count as failed.
	for i, j := range jobs {
		if want := int32(1 - i); j.Status.Succeeded != 1 || j.Status.Failed != want {
			t.Errorf("%s: %d pods succeeded and %d failed, want 1 and %d: %v", j.Name, j.Status.Succeeded, j.Status.Failed, want, j.Status.Conditions)
		}
	}
	for _, p := range night.pods() {
		if p.Status.Phase == corev1.PodSucceeded && (p.Name == killed.Name || p.Name == evicted.Name) {
			t.Errorf("%s succeeded, though it was killed or evicted", p.Name)
		}
	}
	for _, node := range []string{killed.Spec.NodeName, evicted.Spec.NodeName} {
		t.Logf("%s:\n%s", node, night.said(node))
	}

	night.resultEndsJob(jobs[0])

	// The command of the annotation, where the claim's folder is.
	command := strings.Fields(jobs[0].Annotations[plan.MergeAnnotation])
	cmd := program(t.Context(), command[1:]...)
	cmd.Dir = night.reports
	merged := end(t, cmd)
	t.Logf("%s\n%s%s", strings.Join(command, " "), merged.stdout, merged.stderr)
	must.Equal(t, "the merge ended with status", exitExpected, merged.status)
	for _, name := range names {
		r, err := report.Read(filepath.Join(report.Latest(filepath.Join(night.reports, "merged"), name), "report.json"))
		if err != nil {
			t.Error(err)
			continue
		}
		if r.Verdict != "pass" || len(r.Merged.Runs) != 1 {
			t.Errorf("%s: %s, of %d runs, conflicts %q; want pass, of one", name, r.Verdict, len(r.Merged.Runs), r.Merged.Conflicts)
		}
	}
}

// resultEndsJob sees that a pod whose exit status is a result, here the status of bad input, is not
// followed by another one.
func (n *nightCluster) resultEndsJob(job *batchv1.Job) {
	n.Helper()
	wrong := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "wrong", Namespace: job.Namespace}, Spec: *job.Spec.DeepCopy()}
	wrong.Spec.Selector, wrong.Spec.Template.Labels = nil, map[string]string{"app.kubernetes.io/name": "relapse"}
	wrong.Spec.Template.Spec.Containers[0].Args = []string{"run", "no-such-scenario"}
	n.create(wrong)
	n.until("the Job of a wrong name to end", func() bool { return n.ended(wrong) })
	if wrong.Status.Succeeded != 0 || wrong.Status.Failed != 1 {
		n.Errorf("bad input: %d pods succeeded and %d failed, want 0 and 1: %v", wrong.Status.Succeeded, wrong.Status.Failed, wrong.Status.Conditions)
	}
}

// nightCluster is a cluster that Jobs of a plan run on.
type nightCluster struct {
	*testing.T
	lab     *kindlab.Lab
	reports string // the claim's folder, on this machine
}

// upJobsCluster brings the cluster up, with what scenarios need in the claim relapse-cache.
func upJobsCluster(t *testing.T, names []string) *nightCluster {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // images are built
	defer cancel()
	docker := dockerEngine(t)
	catalogue := must.Get(images.Open("../.."))(t)
	// Pods cannot download anything: a lab has no way out.
	refs := append(kindlab.ImagesOf(jobsCluster), "relapse.dev/relapse:dev")
	for _, name := range names {
		declared := must.Get(scenarioNamed(name))(t)
		refs = append(refs, suite.ImagesOf(declared, false, declared.Runnable(false)...)...)
	}
	must.Get(catalogue.Build(ctx, refs, nil))(t)
	down := func() {
		if err := kindlab.Down(context.WithoutCancel(ctx), docker, jobsCluster.Name); err != nil {
			t.Error(err)
		}
	}
	down()
	lab, err := kindlab.Up(ctx, docker, jobsCluster, kindlab.Options{Images: catalogue, Serve: []string{"relapse.dev/relapse:dev"}})
	t.Cleanup(func() {
		if lab != nil {
			lab.Release()
		}
		down()
	})
	must.NoError(t, err)
	n := &nightCluster{t, lab, t.TempDir()}
	for _, node := range lab.Clusters[0].Nodes() {
		must.NoError(t, workload.Wire(ctx, lab, node))
		for from, to := range map[string]string{
			n.reports:                          nodeReports,
			filepath.Dir(catalogue.CacheDir()): nodeCache + "/relapse",
			goEnv(t, "GOCACHE"):                nodeCache + "/go-build",
			goEnv(t, "GOMODCACHE"):             nodeCache + "/go-mod",
		} {
			if err := n.mount(ctx, docker, node, from, to); err != nil {
				t.Fatalf("mounting %s on %s: %v", from, node, err)
			}
		}
	}
	n.claim(plan.Claim, nodeReports)
	n.claim("relapse-cache", nodeCache)
	return n
}

func (n *nightCluster) mount(ctx context.Context, docker *client.Client, node, from, to string) error {
	if _, err := n.lab.Node(node).Exec(ctx, "mkdir", "-p", to); err != nil {
		return err
	}
	pid, err := n.lab.Node(node).PID(ctx)
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it stays in the namespace
		done <- func() error {
			tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return fmt.Errorf("opening it: %w", err)
			}
			defer unix.Close(tree)
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if err != nil {
				return err
			}
			defer namespace.Close()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("entering the node's mount namespace: %w", err)
			}
			return unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}()
	}()
	return <-done
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

func (n *nightCluster) objects() *resources.Resources { return n.lab.Clusters[0].Client.Resources() }

func (n *nightCluster) create(object k8s.Object) {
	n.Helper()
	if err := n.objects().Create(n.Context(), object); err != nil {
		n.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

// claim makes a PersistentVolumeClaim of a folder that all nodes have.
func (n *nightCluster) claim(name, folder string) {
	n.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")} // bounds nothing
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	n.create(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
	}})
	n.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
	}})
}

func (n *nightCluster) get(j *batchv1.Job) {
	n.Helper()
	if err := n.objects().Get(n.Context(), j.Name, j.Namespace, j); err != nil {
		n.Fatalf("reading Job %s: %v", j.Name, err)
	}
}

// ended reports whether a Job has ended, and reads it.
func (n *nightCluster) ended(j *batchv1.Job) bool {
	n.Helper()
	n.get(j)
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

func (n *nightCluster) pods() []corev1.Pod {
	n.Helper()
	var pods corev1.PodList
	if err := n.objects().WithNamespace(metav1.NamespaceDefault).List(n.Context(), &pods, resources.WithLabelSelector("app.kubernetes.io/name=relapse")); err != nil {
		n.Fatalf("listing pods: %v", err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return pods.Items
}

// said is what the containers of relapse on a node have written, ended ones included.
func (n *nightCluster) said(node string) string {
	return n.sh(node, "for c in $(crictl ps --all --quiet --name '^relapse$'); do crictl logs $c 2>&1; done")
}

// sh runs a script on a node, and returns what it printed, or why it failed.
func (n *nightCluster) sh(node, script string) string {
	out, err := n.lab.Node(node).Exec(n.Context(), "sh", "-c", script)
	if err != nil {
		return err.Error()
	}
	return out
}

// describe tells how far all is, a line for each pod. It changes with each step of a run.
func (n *nightCluster) describe() string {
	var parts []string
	for _, p := range n.pods() {
		last := ""
		if p.Status.Phase == corev1.PodRunning {
			last = strings.TrimSpace(n.sh(p.Spec.NodeName, "c=$(crictl ps --quiet --name '^relapse$'); [ -z \"$c\" ] || crictl logs --tail 1 $c 2>&1"))
		}
		state := string(p.Status.Phase)
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				state += ", " + w.Reason + " " + w.Message
			}
			if e := c.State.Terminated; e != nil {
				state += fmt.Sprintf(", status %d", e.ExitCode)
			}
		}
		parts = append(parts, fmt.Sprintf("%s on %s: %s: %s", p.Name, p.Spec.NodeName, state, last))
	}
	return strings.Join(parts, "\n")
}

// stuck is how long nothing may change: longer than any step of a run waits.
const stuck = 6 * time.Minute

func (n *nightCluster) until(what string, met func() bool) {
	n.Helper()
	for last := ""; ; {
		done := false
		err := await.Until(n.Context(), what, time.Second, stuck, func(context.Context) (bool, string, error) {
			now := n.describe()
			done = met()
			changed := now != last
			for line := range strings.SplitSeq(now, "\n") {
				if !strings.Contains(last, line) {
					n.Log(line)
				}
			}
			last = now
			return done || changed, now, nil
		})
		if err != nil {
			for _, node := range n.lab.Clusters[0].Nodes()[1:] {
				n.Logf("%s:\n%s", node, n.said(node))
			}
			n.Fatal(err)
		}
		if done {
			return
		}
	}
}
