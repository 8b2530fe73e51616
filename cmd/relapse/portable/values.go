package portable

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology/status"
)

// Values are the flags that give the values of a user's release.
type Values struct {
	Files []string // - is standard input
	// SetVars are NAME=VALUE, and Vars is a file of variables.
	SetVars []string
	Vars    string
	// OfBundle are texts from a bundle, by the names that stand in Files in the place of file names.
	OfBundle map[string]string
}

// Register declares the flags that give the user's values.
func (v *Values) Register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&v.Files, "values", nil,
		"the values of your Helm release, or the object with them, `FILE`; several merge as with Helm; - is standard input")
	flags.StringArrayVar(&v.SetVars, "set-var", nil, "a variable of a template in these files, `NAME=VALUE`; repeatable")
	flags.StringVar(&v.Vars, "vars", "", "variables of templates in these files: a ConfigMap, a map, or lines NAME=VALUE, `FILE`")
}

// Given reads the files.
func (v Values) Given(component string, stdin io.Reader) (releasefile.Given, error) {
	vars, err := v.Variables()
	if err != nil {
		return releasefile.Given{}, err
	}
	var files []releasefile.File
	for _, name := range v.Files {
		text, called, err := v.Input("--values", name, stdin)
		if err != nil {
			return releasefile.Given{}, err
		}
		files = append(files, releasefile.File{Name: called, Text: text})
	}
	given, err := releasefile.ReadAll(component, vars, files...)
	if err != nil {
		return given, status.Input("--values: %w", err)
	}
	return given, nil
}

// Variables are the values of the variables in the files.
func (v Values) Variables() (placeholder.Values, error) {
	var text []byte
	if v.Vars != "" {
		var err error
		if text, err = os.ReadFile(v.Vars); err != nil {
			return nil, status.Input("--vars: %w", err)
		}
	}
	if _, err := placeholder.Parse(v.SetVars, nil); err != nil {
		return nil, status.Input("--set-var: %w", err)
	}
	vars, err := placeholder.Parse(v.SetVars, text)
	if err != nil {
		return nil, status.Input("--vars: %s: %w", v.Vars, err)
	}
	return vars, nil
}

// Input reads the file that a flag names, or standard input, and returns its name for messages. The YAML and JSON files
// of a folder are one stream, as they are for kubectl apply.
func (v Values) Input(flag, name string, stdin io.Reader) (text []byte, file string, err error) {
	if text, there := v.OfBundle[name]; there {
		return []byte(text), name, nil
	}
	entries, notFolder := os.ReadDir(name)
	switch file = name; {
	case name == "-":
		file = "standard input"
		text, err = io.ReadAll(stdin)
	case notFolder != nil:
		text, err = os.ReadFile(name)
	}
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && err == nil {
			var one []byte
			one, err = os.ReadFile(filepath.Join(name, e.Name()))
			text = fmt.Appendf(text, "---\n%s\n", one)
		}
	}
	if err != nil {
		return nil, "", status.Input("%s: %w", flag, err)
	}
	return text, file, nil
}

// CheckVersions returns an error unless the versions are an upgrade.
func CheckVersions(from, to string) error {
	for _, v := range []string{from, to} {
		if semver.Canonical("v"+v) != "v"+v {
			return status.Input("%q is not a version: expected one such as 1.11.0", v)
		}
	}
	if from == to {
		return status.Input("FROM and TO are both %s: there is no upgrade", from)
	}
	return nil
}
