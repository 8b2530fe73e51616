// Package agents builds the agent slices of images/cilium/rules and asks them what
// the vendor's code makes of a ConfigMap. No cluster is needed for that, and no
// privilege.
package agents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/cilium/agentlog"
	"github.com/relapse-dev/relapse/images"
)

// Image is the image of the slice of a version.
func Image(version string) string { return "relapse.dev/cilium-rules:v" + version }

// Versions are the listed versions of which there is a slice. Others run whole.
func Versions(c *images.Catalogue) []string {
	return slices.DeleteFunc(slices.Clone(c.Versions("cilium")), func(v string) bool { return c.Know(Image(v)) != nil })
}

// Agent is the slice of one version.
type Agent struct {
	Version string
	// Program is the file.
	Program string
}

// In returns the agents of some versions that Build has left in a folder.
func In(dir string, versions []string) []Agent {
	var all []Agent
	for _, version := range versions {
		all = append(all, Agent{version, filepath.Join(dir, version, "cilium-agent")})
	}
	return all
}

// Build builds the slices of some versions into a folder, which need not be those of
// the catalogue. Where none has been built before it takes many minutes. Its errors
// are those of Catalogue.At and Catalogue.Compile.
func Build(ctx context.Context, catalogue *images.Catalogue, dir string, versions []string) ([]Agent, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	all := In(dir, versions)
	for _, a := range all {
		name, _, _ := strings.Cut(Image(a.Version), ":")
		if _, err := catalogue.At(name, a.Version); err != nil {
			return nil, err
		}
		files, err := catalogue.Compile(ctx, Image(a.Version), filepath.Dir(a.Program))
		if err != nil {
			return nil, fmt.Errorf("building the agent of Cilium %s: %w", a.Version, err)
		}
		// The vendor's flags are registered only in a program of this name.
		if err := os.Rename(files[0], a.Program); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Flag is a flag of the agent, which is also a key of its ConfigMap.
type Flag struct {
	Name, Type, Default, Deprecated string
	Hidden                          bool
}

// Flags asks for the agent's flags.
func (a Agent) Flags(ctx context.Context) ([]Flag, error) {
	text, err := exec.CommandContext(ctx, a.Program, "flags").Output()
	if err != nil {
		return nil, fmt.Errorf("flags of %s: %w", a.Version, err)
	}
	var flags []Flag
	if err := json.Unmarshal(text, &flags); err != nil {
		return nil, fmt.Errorf("flags of %s: %w", a.Version, err)
	}
	return flags, nil
}

// Answer is what an agent makes of a configuration.
type Answer struct {
	// Values are those of all keys, Fields what the agent goes by
	// (pkg/option.DaemonConfig).
	Values, Fields map[string]string
	// Invalid and Fatal are what the agent says if it does not start: Invalid
	// when it has read all, Fatal before.
	Invalid, Fatal string
	// Elsewhere is set where Fatal is about this machine. On another one the agent may
	// start.
	Elsewhere bool `json:"-"`
	// Masquerade and NativeRoutingCIDR are what comes of the keys for
	// masquerading IPv4.
	Masquerade        bool
	NativeRoutingCIDR string `json:"native_routing_cidr"`
}

// Refuses is what the agent says if it does not start; empty: it does.
func (a Answer) Refuses() string { return cmp.Or(a.Fatal, a.Invalid) }

// Effective asks for what becomes of a ConfigMap. An agent that ends without a message of
// the vendor's, because it was killed for example, is an error and no answer.
func (a Agent) Effective(ctx context.Context, config map[string]string) (Answer, error) {
	dir, err := os.MkdirTemp("", "configmap-")
	if err != nil {
		return Answer{}, err
	}
	defer os.RemoveAll(dir)
	for key, value := range config {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600); err != nil {
			return Answer{}, err
		}
	}
	var log bytes.Buffer
	c := exec.CommandContext(ctx, a.Program, "effective", "--config-dir", dir)
	// Nothing of the machine's own environment may count.
	c.Env = []string{"HOME=" + dir, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	c.Stderr = &log
	text, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return a.ended(log.String()+string(text), exit)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("configuration of %s: %w", a.Version, err)
	}
	// Versions before 1.10 log to standard output as well.
	var found Answer
	if err := json.Unmarshal(text[bytes.LastIndexByte(bytes.TrimSpace(text), '\n')+1:], &found); err != nil {
		return Answer{}, fmt.Errorf("configuration of %s: %w", a.Version, err)
	}
	// It is another folder every time.
	delete(found.Values, "config-dir")
	delete(found.Fields, "ConfigDir")
	return found, nil
}

// ended is the answer of an agent that has ended by itself, from its log. It is an error
// unless the vendor's code says why.
func (a Agent) ended(log string, exit *exec.ExitError) (Answer, error) {
	switch end := agentlog.Read(log); end.Cause {
	case agentlog.Refused:
		return Answer{Fatal: end.Says}, nil
	case agentlog.Environment:
		return Answer{Fatal: end.Says, Elsewhere: true}, nil
	case agentlog.Slice:
		return Answer{}, fmt.Errorf("configuration of %s: the slice ended for a reason of its own: %s", a.Version, end.Says)
	}
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "panic: ") {
			return Answer{Fatal: strings.TrimSpace(line)}, nil
		}
	}
	return Answer{}, fmt.Errorf("configuration of %s: the slice ended without a reason: %w", a.Version, exit)
}
