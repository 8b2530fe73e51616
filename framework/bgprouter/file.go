package bgprouter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/topology"
)

// Kind is the program that a router of a file runs.
type Kind string

// Kinds of routers that can be read from outside.
const (
	FRR  Kind = "frr"
	BIRD Kind = "bird"
)

// Declared is a router of a file: how its programs are run.
type Declared struct {
	Name string `yaml:"name"`
	Kind Kind   `yaml:"kind"`
	// SSH is where the system's ssh connects to, USER@HOST or a host of its configuration.
	SSH string `yaml:"ssh"`
	// Command is what runs a command on the router, such as docker exec tor1.
	Command []string `yaml:"command"`
}

// Parse reads a file of routers: a YAML list of Declared, with no other keys. Each router has a
// name of its own, a kind, and either ssh or command. The error is one sentence, with the name
// of the file and what is expected.
func Parse(name string, text []byte) ([]Declared, error) {
	wrong := func(format string, args ...any) ([]Declared, error) {
		return nil, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...))
	}
	var routers []Declared
	in := yaml.NewDecoder(bytes.NewReader(text))
	in.KnownFields(true)
	if err := in.Decode(&routers); err != nil && !errors.Is(err, io.EOF) {
		return wrong("%s; expected a list of routers, each with name, kind (frr or bird), and ssh or command", oneLine(err))
	}
	if err := in.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return wrong("expected one list of routers, and nothing after it")
	}
	if len(routers) == 0 {
		return wrong("it has no router: expected a list of routers, each with name, kind (frr or bird), and ssh or command")
	}
	for i, r := range routers {
		at := fmt.Sprintf("router %d", i+1)
		if !plainName(r.Name) {
			return wrong("%s: name %q: expected letters, digits, dots, dashes and underscores", at, r.Name)
		}
		at = "router " + r.Name
		if j := slices.IndexFunc(routers, func(o Declared) bool { return o.Name == r.Name }); j < i {
			return wrong("%s: routers %d and %d have that name", at, j+1, i+1)
		}
		if r.Kind != FRR && r.Kind != BIRD {
			return wrong("%s: kind %q%s: expected frr or bird", at, r.Kind, topology.Nearest(string(r.Kind), []string{string(FRR), string(BIRD)}))
		}
		switch {
		case (r.SSH == "") == (len(r.Command) == 0):
			return wrong("%s: expected either ssh, such as ops@%s, or command, such as [docker, exec, %s]", at, r.Name, r.Name)
		case strings.HasPrefix(r.SSH, "-") || strings.ContainsFunc(r.SSH, func(c rune) bool { return c <= ' ' || c == 0x7f }):
			// ssh would take the first for an option.
			return wrong("%s: ssh %q: expected USER@HOST, or a host of ssh's configuration", at, r.SSH)
		case slices.Contains(r.Command, "") || len(r.Command) > 0 && strings.HasPrefix(r.Command[0], "-"):
			return wrong("%s: command %q: expected a program and its arguments", at, r.Command)
		}
	}
	return routers, nil
}

// oneLine is what yaml says, without its first line and line breaks.
func oneLine(err error) string {
	var wrong *yaml.TypeError
	if errors.As(err, &wrong) && len(wrong.Errors) > 0 {
		return strings.NewReplacer(" in type bgprouter.Declared", "", "[]bgprouter.Declared", "a list", "bgprouter.Declared", "a router").Replace(wrong.Errors[0])
	}
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", " ")
}

// plainName reports whether a name can be printed, and be that of a router.
func plainName(name string) bool {
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c))
	})
}
