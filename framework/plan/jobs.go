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

// Jobs writes a Kubernetes Job for each shard, for kubectl create. A shard's reports are in
// the folder shard-N of Claim; relapse merge merges them.
func Jobs(out io.Writer, shards []Shard, r Run, s Source) error {
	var all []any
	for _, shard := range shards {
		all = append(all, job(shard, r, s))
	}
	return write(out, all...)
}

func job(s Shard, r Run, from Source) *batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/name": "relapse", "relapse.dev/shard": fmt.Sprint(s.Number)}
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("relapse-%d-", s.Number), Labels: labels},
		Spec: batchv1.JobSpec{
			// A verdict is a result: a retry would hide it.
			BackoffLimit:          new(int32(0)),
			ActiveDeadlineSeconds: new(int64(s.Limit().Seconds())),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers:    []corev1.Container{from.runs(r.args(s, fmt.Sprintf("%s/shard-%d", reports, s.Number)))},
					Volumes: []corev1.Volume{scratch("docker"), {Name: "reports", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: Claim},
					}}},
				},
			},
		},
	}
}
