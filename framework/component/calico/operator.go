package calico

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Operator is the version of Calico's operator that renders Installations here. It
// is of the line that installs Calico 3.28.
const Operator = "1.34.3"

// OperatorImage holds the part of the operator that renders calico-node.
func OperatorImage() string { return "relapse.dev/tigera-operator-render:v" + Operator }

//go:embed installation.yaml
var installationYAML string

var installation = template.Must(template.New("installation.yaml").Option("missingkey=error").Parse(installationYAML))

var renderers = workload.Pods{Namespace: metav1.NamespaceSystem, Labels: map[string]string{"app": "tigera-operator-render"}}

// renderWithin bounds the pull and the run of the operator's renderer.
const renderWithin = time.Minute

// MethodOf is the IP_AUTODETECTION_METHOD that the operator renders for an Installation's
// nodeAddressAutodetectionV4, such as {kubernetes: NodeInternalIP}. The operator's own code
// renders it, in a pod of the cluster.
func MethodOf(ctx context.Context, c *kindlab.Cluster, autodetection string) (method string, err error) {
	var manifest bytes.Buffer
	err = installation.Execute(&manifest, map[string]string{"Autodetection": autodetection})
	if err != nil {
		return "", fmt.Errorf("writing the Installation: %w", err)
	}
	if err := renderers.Delete(ctx, c); err != nil { // left by a killed run
		return "", err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: renderers.Namespace, GenerateName: "tigera-operator-render-", Labels: renderers.Labels},
		Spec: corev1.PodSpec{
			NodeName:      c.Nodes()[0],
			HostNetwork:   true, // works without a CNI plugin
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "render", Image: OperatorImage(),
				Env: []corev1.EnvVar{{Name: "INSTALLATION", Value: manifest.String()}},
			}},
		},
	}
	if err := c.Client.Resources().Create(ctx, pod); err != nil {
		return "", fmt.Errorf("starting the operator's renderer: %w", err)
	}
	defer func() { err = errors.Join(err, renderers.Delete(context.WithoutCancel(ctx), c)) }()
	err = await.Until(ctx, "Calico's operator to render", 100*time.Millisecond, renderWithin,
		func(ctx context.Context) (bool, string, error) {
			if err := c.Client.Resources().Get(ctx, pod.Name, pod.Namespace, pod); err != nil {
				return false, "", err
			}
			ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			return ended, workload.DescribePod(*pod), nil
		})
	if err != nil {
		return "", err
	}
	log, err := workload.Log(ctx, c, *pod)
	if err != nil {
		return "", err
	}
	return methodIn(log)
}

// methodIn reads what the renderer printed: the operator's own messages, and the
// DaemonSet in a line of its own.
func methodIn(log string) (string, error) {
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var set appsv1.DaemonSet
		if err := json.Unmarshal([]byte(line), &set); err != nil {
			return "", fmt.Errorf("reading what Calico's operator rendered: %w", err)
		}
		for _, container := range set.Spec.Template.Spec.Containers {
			i := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == "IP_AUTODETECTION_METHOD" })
			if container.Name == agent && i >= 0 {
				return container.Env[i].Value, nil
			}
		}
		return "", fmt.Errorf("the operator's DaemonSet %s has no IP_AUTODETECTION_METHOD", set.Name)
	}
	return "", fmt.Errorf("the operator rendered nothing: %q", log)
}
