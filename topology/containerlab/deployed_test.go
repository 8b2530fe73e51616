package containerlab

import (
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// exported is topology-data.json of containerlab 0.60.0, cut to three nodes and to the fields that are
// read. The lab's host has the name of a network.
const exported = `{
  "name": "node-drain", "type": "clab",
  "nodes": {
    "rack-2": {"shortname": "rack-2", "longname": "clab-node-drain-rack-2", "kind": "bridge", "labels": {"relapse.dev/name": "rack"}},
    "k8s": {"shortname": "k8s", "longname": "clab-node-drain-k8s", "kind": "k8s-kind", "labels": {"relapse.dev/name": "k8s"}},
    "k8s-worker": {"shortname": "k8s-worker", "longname": "k8s-worker", "kind": "ext-container", "labels": {"relapse.dev/name": "master3"}},
    "tor1": {"shortname": "tor1", "longname": "clab-node-drain-tor1", "kind": "linux", "labels": {}},
    "rack": {"shortname": "rack", "longname": "clab-node-drain-rack", "kind": "linux", "labels": {"relapse.dev/name": "outside"}}
  },
  "links": []
}`

func TestReadDeployed(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  Deployed
		says  string // in the error
	}{
		{name: "one", files: map[string]string{"clab-node-drain": exported},
			want: Deployed{Clusters: []string{"k8s"}, Containers: map[string]string{"tor1": "clab-node-drain-tor1", "outside": "clab-node-drain-rack"}, External: []string{"k8s-worker"}}},
		{name: "not deployed", says: "has 0 files clab-*/topology-data.json, which containerlab deploy writes"},
		{name: "two", files: map[string]string{"clab-a": exported, "clab-b": exported}, says: "has 2 files"},
		{name: "deployment under way", files: map[string]string{"clab-a": ""}, says: "topology-data.json: unexpected end of JSON input"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				must.Write(t, filepath.Join(dir, name, "topology-data.json"), text)
			}
			got, err := ReadDeployed(dir)
			if test.says != "" {
				must.Fail(t, err, test.says)
				return
			}
			must.NoError(t, err)
			must.Equal(t, "", test.want, got)
		})
	}
}
