package plan

import (
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are the fields of Argo's types that are used here, and Kubernetes' own within
// them. The types themselves are in the module of the whole of Argo Workflows. A test
// holds what is written to Argo's JSON schema.
type (
	workflow struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metadata     `json:"metadata"`
		Spec            workflowSpec `json:"spec"`
	}
	metadata struct {
		GenerateName string            `json:"generateName"`
		Labels       map[string]string `json:"labels"`
	}
	workflowSpec struct {
		Entrypoint string     `json:"entrypoint"`
		Templates  []template `json:"templates"`
	}
	template struct {
		Name                  string            `json:"name"`
		DAG                   *dag              `json:"dag,omitempty"`
		Inputs                *artifacts        `json:"inputs,omitempty"`
		Outputs               *artifacts        `json:"outputs,omitempty"`
		ActiveDeadlineSeconds string            `json:"activeDeadlineSeconds,omitempty"` // Argo takes numbers, its schema text alone
		Container             *corev1.Container `json:"container,omitempty"`
		Volumes               []corev1.Volume   `json:"volumes,omitempty"`
	}
	dag struct {
		Tasks []task `json:"tasks"`
	}
	task struct {
		Name      string     `json:"name"`
		Template  string     `json:"template"`
		Depends   string     `json:"depends,omitempty"`
		Arguments *artifacts `json:"arguments,omitempty"`
	}
	artifacts struct {
		Artifacts []artifact `json:"artifacts"`
	}
	artifact struct {
		Name     string `json:"name"`
		Path     string `json:"path,omitempty"`
		From     string `json:"from,omitempty"`
		Optional bool   `json:"optional,omitempty"`
	}
)

// mergeFound merges those of its folders that are there. If one is not, nobody knows
// what its shard came to: exit status 4.
const mergeFound = `found=() missing=0 output=$1
shift
for shard; do
  if [ -e "$shard" ]; then
    found+=("$shard")
  else
    echo "$shard: the shard has left no report" >&2
    missing=4
  fi
done
bin/relapse merge --output="$output" "${found[@]}"
exit $missing
`

// Argo writes an Argo Workflow, for argo submit: the shards side by side, then one
// step that merges their reports, whatever came of them. The reports are artifacts, so
// that the cluster needs an artifact repository. The workflow succeeds if the merged
// runs have passed.
func Argo(out io.Writer, shards []Shard, r Run, s Source) error {
	const merge, merged = "merge", "/merged"
	var (
		night             dag
		all, given, taken []artifact
		templates         []template
		ended, folders    []string
	)
	for _, shard := range shards {
		name := fmt.Sprintf("shard-%d", shard.Number)
		container := s.runs(r.args(shard, reports))
		result := artifact{Name: "reports", Path: reports, Optional: true} // of a shard that ended before there was one
		templates = append(templates, template{
			Name: name, Container: &container, ActiveDeadlineSeconds: fmt.Sprint(int64(shard.Limit().Seconds())),
			Outputs: &artifacts{[]artifact{result}}, Volumes: []corev1.Volume{scratch("docker"), scratch("reports")},
		})
		night.Tasks = append(night.Tasks, task{Name: name, Template: name})
		ended = append(ended, fmt.Sprintf("(%s.Succeeded || %s.Failed || %s.Errored)", name, name, name))
		folder := reports + "/" + name
		folders = append(folders, folder)
		taken = append(taken, artifact{Name: name, Path: folder, Optional: true})
		given = append(given, artifact{Name: name, From: fmt.Sprintf("{{tasks.%s.outputs.artifacts.reports}}", name), Optional: true})
	}
	all = append(all, artifact{Name: "merged", Path: merged, Optional: true})
	night.Tasks = append(night.Tasks, task{
		Name: merge, Template: merge, Depends: strings.Join(ended, " && "), Arguments: &artifacts{given},
	})
	templates = append(templates, template{
		Name: merge, Inputs: &artifacts{taken}, Outputs: &artifacts{all},
		Container: &corev1.Container{
			Name: "relapse", Image: s.Image,
			Command: s.checkout(mergeFound, append([]string{merged}, folders...)),
		},
	})
	const entry = "night"
	return write(out, workflow{
		TypeMeta: metav1.TypeMeta{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow"},
		Metadata: metadata{GenerateName: "relapse-", Labels: map[string]string{"app.kubernetes.io/name": "relapse"}},
		Spec:     workflowSpec{Entrypoint: entry, Templates: append([]template{{Name: entry, DAG: &night}}, templates...)},
	})
}
