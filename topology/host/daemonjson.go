package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
)

// daemonConfig is the content of Docker's daemon.json. Unknown members are kept unchanged.
type daemonConfig map[string]json.RawMessage

// parseDaemonConfig reads a daemon.json. An empty file is an empty configuration.
func parseDaemonConfig(text []byte) (daemonConfig, error) {
	config := daemonConfig{}
	if len(bytes.TrimSpace(text)) == 0 {
		return config, nil
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	if config == nil { // null
		config = daemonConfig{}
	}
	if _, err := config.runtimes(); err != nil {
		return nil, err
	}
	return config, nil
}

func (c daemonConfig) runtimes() (map[string]json.RawMessage, error) {
	runtimes := map[string]json.RawMessage{}
	if raw, ok := c["runtimes"]; ok {
		if err := json.Unmarshal(raw, &runtimes); err != nil {
			return nil, fmt.Errorf("runtimes: %w", err)
		}
	}
	if runtimes == nil {
		runtimes = map[string]json.RawMessage{}
	}
	return runtimes, nil
}

func (c daemonConfig) register(path string) (daemonConfig, error) {
	runtimes, err := c.runtimes()
	if err != nil {
		return nil, err
	}
	if runtimes[runtimeName], err = json.Marshal(map[string]string{"path": path}); err != nil {
		return nil, err
	}
	return c.with(quoted(runtimeName), runtimes)
}

// withdraw returns the configuration without the shim. It restores the default
// runtime of before, the configuration that register was given.
func (c daemonConfig) withdraw(before daemonConfig) (daemonConfig, error) {
	runtimes, err := c.runtimes()
	if err != nil {
		return nil, err
	}
	delete(runtimes, runtimeName)
	runtime := c["default-runtime"]
	if bytes.Equal(runtime, quoted(runtimeName)) {
		runtime = before["default-runtime"]
	}
	out, err := c.with(runtime, runtimes)
	if err != nil {
		return nil, err
	}
	if runtime == nil {
		delete(out, "default-runtime")
	}
	if _, ok := before["runtimes"]; !ok && len(runtimes) == 0 {
		delete(out, "runtimes")
	}
	return out, nil
}

// explicit returns the configuration with defaults written out: if a member is deleted from the
// file, dockerd keeps its value at a reload (Docker 20.10, daemon/reload_unix.go).
func (c daemonConfig) explicit() (daemonConfig, error) {
	runtimes, err := c.runtimes()
	if err != nil {
		return nil, err
	}
	return c.with(quoted(c.defaultRuntime()), runtimes)
}

func (c daemonConfig) defaultRuntime() string {
	var name string
	if json.Unmarshal(c["default-runtime"], &name) != nil || name == "" {
		return "runc"
	}
	return name
}

func (c daemonConfig) with(runtime json.RawMessage, runtimes map[string]json.RawMessage) (daemonConfig, error) {
	raw, err := json.Marshal(runtimes)
	if err != nil {
		return nil, err
	}
	out := maps.Clone(c)
	out["default-runtime"], out["runtimes"] = runtime, raw
	return out, nil
}

func (c daemonConfig) text() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func quoted(name string) json.RawMessage { return json.RawMessage(`"` + name + `"`) }
