package adopt

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// A folder that was not deployed, and a lab on another machine, are refused without a request to Docker.
func TestOpenRefuses(t *testing.T) {
	const (
		data     = `{"nodes": {"k8s": {"longname": "clab-x-k8s", "kind": "k8s-kind"}}}`
		deployed = "clab-x/topology-data.json"
		tor1     = "- {name: tor1, kind: frr, command: [docker, exec, tor1]}"
	)
	for _, test := range []struct {
		name    string
		files   map[string]string // below the folder
		on      string            // a path below the folder, opened in its place
		routers string            // below the folder
		lacks   bool              // the error names what is missing, and is not bad input
		says    string
	}{
		{name: "a kubeconfig without routers", files: map[string]string{"config": ""}, on: "config", says: "expected --routers FILE, too"},
		{name: "a kubeconfig that is none", files: map[string]string{"config": "a: [", "r.yml": tor1}, on: "config", routers: "r.yml",
			says: "reading kubeconfig"},
		{name: "a kubeconfig without a context", on: "config", routers: "r.yml", says: "reading kubeconfig",
			files: map[string]string{"config": "apiVersion: v1\nkind: Config\ncurrent-context: lab\n", "r.yml": tor1}},
		{name: "a cluster that does not answer", on: "config", routers: "r.yml", lacks: true, says: "nodes of the cluster at https://127.0.0.1:1",
			files: map[string]string{"r.yml": tor1, "config": `{apiVersion: v1, kind: Config, current-context: lab, contexts: [{name: lab, context: {cluster: lab, user: u}}],
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {}}]}`}},
		{name: "not deployed", says: "0 files clab-*/topology-data.json"},
		{name: "no cluster", files: map[string]string{deployed: `{"nodes": {}}`}, says: "has 0 clusters of kind"},
		{name: "no file of routers", files: map[string]string{deployed: data},
			says: "has no routers.yml, which says how its routers are read: expected --routers FILE"},
		{name: "a file of routers that is none", files: map[string]string{deployed: data, "routers.yml": "a: b"}, says: "expected a list of routers"},
		{name: "a router without static routes", files: map[string]string{deployed: data, "routers.yml": "- {name: tor1, kind: bird, ssh: tor1}"},
			lacks: true, says: "router tor1 is of kind bird"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				must.Write(t, filepath.Join(dir, name), text)
			}
			routers := ""
			if test.routers != "" {
				routers = filepath.Join(dir, test.routers)
			}
			_, err := Open(t.Context(), nil, filepath.Join(dir, test.on), routers)
			if said := fmt.Sprint(err); strings.HasPrefix(said, "the lab does not fit") != test.lacks || !strings.Contains(said, test.says) {
				t.Errorf("error %v, want %q", err, test.says)
			}
		})
	}
}

// A cluster that containerlab does not deploy is found by the nodes whose networks its containers share.
func TestJoined(t *testing.T) {
	inspect := func(name string) (info client.ContainerInspectResult, err error) {
		info.Container = container.InspectResponse{Config: &container.Config{}, HostConfig: &container.HostConfig{}}
		switch name {
		case "lab-worker", "id-of-worker":
			info.Container.Config.Labels = map[string]string{clusterLabel: "lab"}
		case "clab-x-server":
			info.Container.HostConfig.NetworkMode = "container:id-of-worker"
		case "clab-x-sidecar":
			info.Container.HostConfig.NetworkMode = "container:clab-x-tor"
		case "gone":
			err = errors.New("no such container")
		}
		return info, err
	}
	for name, test := range map[string]struct {
		deployed containerlab.Deployed
		clusters string
		hosts    int
	}{
		"network-mode":  {containerlab.Deployed{Containers: map[string]string{"server": "clab-x-server", "tor": "clab-x-tor"}}, "[lab]", 1},
		"ext-container": {containerlab.Deployed{External: []string{"lab-worker", "gone"}, Containers: map[string]string{"tor": "clab-x-tor"}}, "[lab]", 1},
		"a sidecar":     {containerlab.Deployed{Containers: map[string]string{"tor": "clab-x-tor", "sidecar": "clab-x-sidecar"}}, "[]", 1},
	} {
		if got := fmt.Sprint(joined(&test.deployed, inspect)); got != test.clusters || len(test.deployed.Containers) != test.hosts {
			t.Errorf("%s: clusters %s, want %s; hosts %v", name, got, test.clusters, test.deployed.Containers)
		}
	}
}

// The error names everything that an adopted lab cannot have.
func TestCheckOfScenario(t *testing.T) {
	fits := framework.Scenario{Foreign: true, Topology: topology.Topology{Clusters: []topology.Cluster{{Nodes: []topology.Node{{Name: "a"}}}}}}
	slice := []framework.Variant{{Name: "v1"}}
	c := checker{t: fits.Topology}
	if c.scenario(fits, slice); len(c.found) > 0 {
		t.Errorf("%q is missing for a scenario that fits", c.found)
	}
	not := framework.Scenario{Incident: framework.Incident{Name: "flood"}, OnlyOwnLab: "it floods", Topology: topology.Topology{
		Clusters: []topology.Cluster{{Nodes: []topology.Node{{Name: "a", Kernel: "6.1"}}}},
		Hosts:    []topology.Host{{Name: "db", Image: "relapse.dev/mariadb:10.11"}},
	}}
	c = checker{t: not.Topology}
	c.scenario(not, []framework.Variant{{Name: "v2", OnlyOwnLab: "it leaves programs"}})
	said := unfit(c.found...).Error()
	for _, want := range []string{
		"nothing was touched", "scenario flood runs on relapse's own labs alone: it floods", "variant v2 runs on relapse's own labs alone: it leaves programs",
		"node a needs a kernel of its own (6.1)", "host db must run image relapse.dev/mariadb:10.11",
	} {
		must.Contain(t, said, want)
	}
}

func TestExecs(t *testing.T) {
	for _, test := range []struct{ command, container string }{
		{"docker exec tor1", "tor1"},
		{"sudo docker exec -i -u root clab-x-tor1", "clab-x-tor1"},
		{"docker exec", ""},
		{"podman exec tor1", ""},
		{"ip netns exec tor1", ""},
		{"", ""},
	} {
		must.Equal(t, test.command, test.container, execs(strings.Fields(test.command)))
	}
}

// The commands in somebody else's file of routers are not run as root unasked.
func TestTrusted(t *testing.T) {
	for _, test := range []struct {
		command []string
		want    bool
	}{
		{nil, true},
		{[]string{"docker", "exec", "clab-x-tor1"}, true},
		{[]string{"docker", "exec", "--privileged"}, false},
		{[]string{"docker", "exec", "tor1", "sh"}, false},
		{[]string{"sh", "-c", "id"}, false},
	} {
		if err := trusted([]bgprouter.Declared{{Name: "tor1", Command: test.command}}); (err == nil) != test.want {
			t.Errorf("%q: %v", test.command, err)
		}
	}
}
