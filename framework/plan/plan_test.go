package plan

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/topology/must"
)

const minute = time.Minute

func TestShards(t *testing.T) {
	five := []Item{{"a", 3 * minute}, {"b", 5 * minute}, {"c", 3 * minute}, {"d", 6 * minute}, {"e", 5 * minute}}
	for _, test := range []struct {
		name  string
		items []Item
		n     int
		want  []string
	}{
		{"one machine", five, 1, []string{"d b e a c 22m0s"}},
		{"two machines", five, 2, []string{"d a c 12m0s", "b e 10m0s"}},
		{"more machines than scenarios", five[:2], 9, []string{"b 5m0s", "a 3m0s"}},
		{"one that was not measured", append(slices.Clone(five), Item{"new", 0}), 3, []string{"d a 9m0s", "new c 3m0s", "b e 10m0s"}},
		{"none was measured", []Item{{"a", 0}, {"b", 0}, {"c", 0}}, 2, []string{"a c 0s", "b 0s"}},
		{"nothing", nil, 2, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for i, s := range Shards(test.items, test.n) {
				must.Equal(t, "", i+1, s.Number)
				got = append(got, strings.Join(s.Scenarios(), " ")+" "+s.Lasts().String())
			}
			must.Equal(t, "", test.want, got)
		})
	}
}

func TestLimit(t *testing.T) {
	s := Shard{Items: []Item{{"a", 4 * minute}, {"new", 0}}}
	if got, want := s.Limit(), 117*minute; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The plan that is written in each form.
var (
	planned  = []Shard{{1, []Item{{"added-nic", 393 * time.Second}}}, {2, []Item{{"node-drain", 203 * time.Second}, {"unpinned-image", 0}}}}
	selected = Run{Label: "cilium && !slow", With: "cilium=1.12.1"}
	pods     = Pods{Image: "registry.example.org/relapse:v1", Cache: "relapse-cache"}
)

func TestGitHub(t *testing.T) {
	var out bytes.Buffer
	must.NoError(t, GitHub(&out, planned, selected))
	goldentest.Compare(t, "github.json", out.String())
	if bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Error("a line of $GITHUB_OUTPUT is one line")
	}
}

// jobs are the Jobs of the plan, as a server with strict validation decodes them, and their text.
func jobs(t *testing.T, p Pods) (all []batchv1.Job, text string) {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, Jobs(&out, planned, Run{Folder: "2026-01-02T03-04-05Z", Label: `cilium && !"slow"`}, p))
	for text := range strings.SplitSeq(out.String(), "---\n") {
		var j batchv1.Job
		must.NoError(t, yaml.UnmarshalStrict([]byte(text), &j))
		all = append(all, j)
	}
	must.Equal(t, "jobs", len(planned), len(all))
	return all, out.String()
}

func TestJobsAreJobs(t *testing.T) {
	all, text := jobs(t, pods)
	goldentest.Compare(t, "jobs.yaml", text)
	for i, j := range all {
		pod := j.Spec.Template.Spec
		if !*pod.Containers[0].SecurityContext.Privileged || pod.RestartPolicy != corev1.RestartPolicyNever || pod.Volumes[2].PersistentVolumeClaim.ClaimName != Claim {
			t.Errorf("%+v", j.Spec)
		}
		must.Contain(t, strings.Join(pod.Containers[0].Args, "\n"), "run\n"+planned[i].Items[0].Scenario, `--label=cilium && !"slow"`)
		must.Contain(t, j.Annotations[MergeAnnotation], "--expect=added-nic,node-drain,unpinned-image", "/shard-1 ")
	}
	// Without a claim for the cache nothing names one.
	_, text = jobs(t, Pods{Image: "x"})
	must.Equal(t, "a cache", false, strings.Contains(text, "cache"))
}

// A pod that is killed at its deadline leaves no report of what runs: relapse times out
// before, in every form.
func TestDeadlines(t *testing.T) {
	all, _ := jobs(t, pods)
	for i, s := range planned {
		if got := s.Deadline() - s.Limit(); got < 15*minute {
			t.Errorf("shard %d: %s for set-up and tear-down", s.Number, got)
		}
		if got := *all[i].Spec.ActiveDeadlineSeconds; got != int64(3*s.Deadline().Seconds()) {
			t.Errorf("shard %d: the job's deadline is %d s, want that of three pods, each %s", s.Number, got, s.Deadline())
		}
	}
}
