package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are the fields of Argo's types that are used here, with Kubernetes' own types
// inside. Argo's types are in the module of the whole of Argo Workflows. A test validates
// the output against Argo's JSON schema.
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
		ActiveDeadlineSeconds string            `json:"activeDeadlineSeconds,omitempty"` // Argo accepts numbers, its schema only strings
		RetryStrategy         *retryStrategy    `json:"retryStrategy,omitempty"`
		Container             *corev1.Container `json:"container,omitempty"`
		Volumes               []corev1.Volume   `json:"volumes,omitempty"`
	}
	retryStrategy struct {
		Limit       string `json:"limit"`
		RetryPolicy string `json:"retryPolicy"`
		Expression  string `json:"expression"`
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

// replaces has Argo start another pod in place of one that was killed or evicted, up to kills
// times. As in Jobs, a pod whose exit status is a result is not replaced. Argo gives a pod that
// has no exit status -1.
func replaces() *retryStrategy {
	return &retryStrategy{
		Limit: fmt.Sprint(kills), RetryPolicy: "Always",
		Expression: fmt.Sprintf("asInt(lastRetry.exitCode) < 0 || asInt(lastRetry.exitCode) > %d", slices.Max(results)),
	}
}

// merges is a container that merges the reports in folders, some of which may be missing.
func (p Pods) merges(shards []Shard, output string, folders []string) corev1.Container {
	args := append([]string{"merge", "--output=" + output, "--expect=" + Expected(shards)}, folders...)
	return corev1.Container{Name: container, Image: p.Image, Command: command, Args: args}
}

// Argo writes an Argo Workflow, for argo submit: the shards in parallel, then one step that
// merges their reports, even if shards failed. The reports are artifacts: the cluster needs
// an artifact repository. The workflow succeeds if the merged
// runs pass and none of the plan is missing.
func Argo(out io.Writer, shards []Shard, r Run, p Pods) error {
	const merge, merged = "merge", "/merged"
	var (
		night             dag
		all, given, taken []artifact
		templates         []template
		ended, folders    []string
	)
	for _, shard := range shards {
		name := fmt.Sprintf("shard-%d", shard.Number)
		runs := p.runs(r.args(shard, reports))
		runs.Command = command
		result := artifact{Name: "reports", Path: reports, Optional: true} // a shard may end without one
		templates = append(templates, template{
			Name: name, Container: &runs, ActiveDeadlineSeconds: fmt.Sprint(int64(shard.Deadline().Seconds())),
			RetryStrategy: replaces(), Outputs: &artifacts{[]artifact{result}}, Volumes: append(p.volumes(), scratch("reports")),
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
	merges := p.merges(shards, merged, folders)
	templates = append(templates, template{
		Name: merge, Inputs: &artifacts{taken}, Outputs: &artifacts{all}, Container: &merges,
	})
	const entry = "night"
	return write(out, workflow{
		TypeMeta: metav1.TypeMeta{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow"},
		Metadata: metadata{GenerateName: "relapse-", Labels: map[string]string{"app.kubernetes.io/name": "relapse"}},
		Spec:     workflowSpec{Entrypoint: entry, Templates: append([]template{{Name: entry, DAG: &night}}, templates...)},
	})
}
