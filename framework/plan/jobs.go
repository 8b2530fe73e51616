package plan

import (
	"fmt"
	"io"
	"path"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/each"
)

// Claim is the PersistentVolumeClaim that Jobs write their reports to. The cluster's owner
// creates it.
const Claim = "relapse-reports"

// kills is how often a Job replaces a pod that was killed. An evicted pod does not count.
const kills = 2

// results are the exit statuses of relapse run but for 0: a verdict that was not expected, bad
// input, a machine that cannot run it, an inconclusive run, and a command that failed.
var results = []int32{1, 2, 3, 4, 6}

// MergeAnnotation of each Job is the command that merges the reports of all Jobs of a plan,
// in Claim. Without the plan's names, a report that is missing would not be noticed.
const MergeAnnotation = "relapse.dev/merge"

// MergeCommand is the command that merges the reports of the Jobs of a plan, in Claim.
func (r Run) MergeCommand(shards []Shard) string {
	command := "relapse merge --replaced --expect=" + Expected(shards)
	for _, s := range shards {
		command += " " + r.folder(s)
	}
	return command
}

func (r Run) folder(s Shard) string { return path.Join(r.Folder, fmt.Sprintf("shard-%d", s.Number)) }

// Jobs writes a Kubernetes Job for each shard, for kubectl create. A shard's reports are in
// the folder shard-N of Run.Folder; MergeCommand merges them.
func Jobs(out io.Writer, shards []Shard, r Run, p Pods) error {
	all := each.Of(shards, func(shard Shard) any { return job(shard, shards, r, p) })
	return write(out, all...)
}

func job(s Shard, all []Shard, r Run, p Pods) *batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/name": "relapse", "relapse.dev/shard": fmt.Sprint(s.Number)}
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: fmt.Sprintf("relapse-%d-", s.Number), Labels: labels,
			Annotations: map[string]string{MergeAnnotation: r.MergeCommand(all)},
		},
		Spec: batchv1.JobSpec{
			// The report of a pod that ran to its end is not hidden by another one: a run's
			// exit statuses are results. Another pod replaces one that was killed, for lack of
			// memory or with its node, and runs all scenarios of the shard again. relapse merge
			// --replaced takes the newest report of each, and any with another verdict.
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{
					Action: batchv1.PodFailurePolicyActionIgnore,
					OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
						{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
					},
				},
				{
					Action: batchv1.PodFailurePolicyActionFailJob,
					OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
						ContainerName: new(container), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: results,
					},
				},
			}},
			BackoffLimit: new(int32(kills)),
			// relapse ends by itself, at Limit. This is for all pods together.
			ActiveDeadlineSeconds: new(int64((1 + kills) * s.Deadline().Seconds())),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers:    []corev1.Container{p.runs(r.args(s, reports+"/"+r.folder(s)))},
					Volumes:       append(p.volumes(), claimed("reports", Claim)),
				},
			},
		},
	}
}
