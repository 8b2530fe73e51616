package host

import (
	"bytes"
	stdjson "encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

// daemonConfig is the content of Docker's daemon.json. Unknown members are kept by value: 1.50 becomes 1.5.
type daemonConfig map[string]any

// parseDaemonConfig reads a daemon.json. An empty file is an empty configuration.
func parseDaemonConfig(text []byte) (daemonConfig, error) {
	config := map[string]any{}
	if len(bytes.TrimSpace(text)) > 0 {
		if err := json.Unmarshal(text, &config); err != nil {
			return nil, err
		}
	}
	if config == nil { // null
		config = map[string]any{}
	}
	if config["runtimes"] == nil {
		delete(config, "runtimes")
	}
	_, _, err := unstructured.NestedMap(config, "runtimes")
	return config, err
}

func (c daemonConfig) register(path string) error {
	c["default-runtime"] = runtimeName
	return unstructured.SetNestedField(c, map[string]any{"path": path}, "runtimes", runtimeName)
}

// withdraw removes the shim, and restores the default runtime of the configuration before register.
func (c daemonConfig) withdraw(before daemonConfig) {
	unstructured.RemoveNestedField(c, "runtimes", runtimeName)
	if c["default-runtime"] == runtimeName {
		c["default-runtime"] = before["default-runtime"]
	}
	if c["default-runtime"] == nil {
		delete(c, "default-runtime")
	}
	if left, _, _ := unstructured.NestedMap(c, "runtimes"); len(left) == 0 && before["runtimes"] == nil {
		delete(c, "runtimes")
	}
}

// explicit writes defaults out: if a member is deleted from the file, dockerd keeps its value at a
// reload (Docker 20.10, daemon/reload_unix.go).
func (c daemonConfig) explicit() {
	c["default-runtime"] = c.defaultRuntime()
	if c["runtimes"] == nil {
		c["runtimes"] = map[string]any{}
	}
}

func (c daemonConfig) defaultRuntime() string {
	if name, _ := c["default-runtime"].(string); name != "" {
		return name
	}
	return "runc"
}

func (c daemonConfig) text() ([]byte, error) {
	var out bytes.Buffer
	encoder := stdjson.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(c)
	return out.Bytes(), err
}
