package plan

import (
	"fmt"
	"io"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Claim is the PersistentVolumeClaim that Jobs write their reports to. The cluster's owner
// creates it.
const Claim = "relapse-reports"

// mergeAnnotation of each Job is the command that merges the reports of all Jobs of a plan,
// in Claim. Without the plan's names, a report that is missing would not be noticed.
const mergeAnnotation = "relapse.dev/merge"

// MergeCommand is the command that merges the reports of the Jobs of a plan, in Claim.
func MergeCommand(shards []Shard) string {
	command := "relapse merge --expect=" + Expected(shards)
	for _, s := range shards {
		command += " " + s.folder()
	}
	return command
}

// folder is where a shard's reports are, in Claim.
func (s Shard) folder() string { return fmt.Sprintf("shard-%d", s.Number) }

// Jobs writes a Kubernetes Job for each shard, for kubectl create. A shard's reports are in
// the folder shard-N of Claim; MergeCommand merges them.
func Jobs(out io.Writer, shards []Shard, r Run, s Source) error {
	var all []any
	for _, shard := range shards {
		all = append(all, job(shard, shards, r, s))
	}
	return write(out, all...)
}

func job(s Shard, all []Shard, r Run, from Source) *batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/name": "relapse", "relapse.dev/shard": fmt.Sprint(s.Number)}
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("relapse-%d-", s.Number), Labels: labels, Annotations: map[string]string{mergeAnnotation: MergeCommand(all)}},
		Spec: batchv1.JobSpec{
			// A verdict is a result: a retry would hide it.
			BackoffLimit:          new(int32(0)),
			ActiveDeadlineSeconds: new(int64(s.Deadline().Seconds())),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers:    []corev1.Container{from.runs(r.args(s, reports+"/"+s.folder()))},
					Volumes: []corev1.Volume{scratch("docker"), {Name: "reports", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: Claim},
					}}},
				},
			},
		},
	}
}
