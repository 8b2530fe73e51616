package calico

import (
	"bytes"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestMethodIn(t *testing.T) {
	const set = `{"kind":"DaemonSet","metadata":{"name":"calico-node"},"spec":{"template":{"spec":{"containers":[` +
		`{"name":"calico-node","env":[{"name":"IP","value":"autodetect"},{"name":"IP_AUTODETECTION_METHOD","value":"kubernetes-internal-ip"}]}]}}}}`
	for name, test := range map[string]struct{ log, method, says string }{
		"rendered, after a message of the operator's": {log: "2026/11/22 [INFO] no namespace\n" + set + "\n", method: InternalIP},
		"no method":    {log: strings.Replace(set, "IP_AUTODETECTION_METHOD", "OTHER", 1), says: "calico-node has no IP_AUTODETECTION_METHOD"},
		"an error":     {log: `installation: reading the Installation: unknown field "spec.calico"`, says: `the operator rendered nothing: "installation: reading`},
		"half a line":  {log: set[:40], says: "reading what Calico's operator rendered"},
		"another name": {log: strings.Replace(set, `[{"name":"calico-node"`, `[{"name":"other"`, 1), says: "has no IP_AUTODETECTION_METHOD"},
	} {
		t.Run(name, func(t *testing.T) {
			method, err := methodIn(test.log)
			if method != test.method || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q, %v", method, err)
			}
		})
	}
}

func TestInstallation(t *testing.T) {
	var text bytes.Buffer
	must.NoError(t, installation.Execute(&text, map[string]string{"Autodetection": "{kubernetes: NodeInternalIP}"}))
	var read struct {
		Spec struct {
			CalicoNetwork struct {
				NodeAddressAutodetectionV4 map[string]string `json:"nodeAddressAutodetectionV4"`
			} `json:"calicoNetwork"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text.Bytes(), &read); err != nil || read.Spec.CalicoNetwork.NodeAddressAutodetectionV4["kubernetes"] != "NodeInternalIP" {
		t.Errorf("%+v, %v", read, err)
	}
}
