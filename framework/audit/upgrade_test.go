package audit

import (
	"fmt"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// With an upgrade the audit reads one more ConfigMap, which the Role permits, and nothing else.
func TestUpgradeReadsOneConfigMap(t *testing.T) {
	var role struct {
		Metadata struct{ Namespace string }
		Rules    []struct{ APIGroups, Resources, ResourceNames, Verbs []string }
	}
	must.NoError(t, yaml.Unmarshal([]byte(UpgradeRole()), &role))
	must.Equal(t, "namespace", "kube-system", role.Metadata.Namespace)
	must.Equal(t, "the Role permits", "[{[] [configmaps] [cilium-config] [get]}]", fmt.Sprint(role.Rules))
	s := newServer(t)
	for _, test := range []struct {
		cilium bool
		path   string
		sent   bool
	}{
		{false, ConfigPath, false}, {true, ConfigPath, true},
		{true, "/api/v1/namespaces/kube-system/configmaps", false}, {true, "/api/v1/namespaces/kube-system/configmaps/other", false},
	} {
		err := s.send(t, &http.Client{Transport: readOnly{to: http.DefaultTransport, cilium: test.cilium}}, http.MethodGet, test.path)
		must.Equal(t, err, test.sent, err == nil)
	}
}

func TestReadForUpgrade(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	config := rest.CopyConfig(s.config(t))
	reads := must.Get(Read(t.Context(), Access{Config: config, Upgrade: true}, 0, func(string) {}))(t)
	last := reads[len(reads)-1]
	must.Equal(t, "read", false, last.ConfigMaps.Read)
	must.Contain(t, last.ConfigMaps.Error, "only lists, and does not send GET "+ConfigPath)
}

// Agents of two versions, as during a rollout, are an error.
func TestRunning(t *testing.T) {
	pod := func(image string) snapshot.PodImages {
		return snapshot.PodImages{Containers: []snapshot.RunningContainer{{Container: snapshot.Container{Name: "cilium-agent", Image: image}}, {Container: snapshot.Container{Name: "envoy", Image: "example.org/envoy:v9.9.9"}}}}
	}
	for _, test := range []struct {
		name string
		pods []snapshot.PodImages
		want string
	}{
		{"pods alone", []snapshot.PodImages{pod("example.org/cilium:v1.11.6"), pod("example.org/cilium:v1.11.6")}, "1.11.6, the tags of the images of 2 pods"},
		{"two versions", []snapshot.PodImages{pod("example.org/cilium:v1.11.6"), pod("example.org/cilium:v1.12.0")}, "containers cilium-agent have images of 1.11.6 and 1.12.0"},
		{"latest", []snapshot.PodImages{pod("example.org/cilium:latest")}, "has no tag that is a version"},
		{"none", nil, "no pod with a container cilium-agent was read"},
	} {
		version, how, err := running(snapshot.Snapshot{PodImages: snapshot.List[snapshot.PodImages]{Items: test.pods}})
		got := version + ", " + how
		if err != nil {
			got = err.Error()
		}
		must.Contain(t, got, test.want)
	}
}
