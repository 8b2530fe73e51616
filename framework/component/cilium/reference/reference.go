// Package reference reads what a version of Cilium states of the keys of its ConfigMap: the reference of commands,
// which the vendor's programs print and its CI compares, the chart, and the upgrade notes. All of it is in the vendor's
// module, so that no image has to be built.
package reference

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/images"
)

// Of returns what a version states, without a leading v. It downloads the vendor's module if need be: the error is an
// *images.NotPublishedError or an *images.UnreachableError if it is not available.
func Of(ctx context.Context, version string) (configdrift.Reference, error) {
	dir, err := images.Download(ctx, module.Version{Path: "github.com/cilium/cilium", Version: "v" + version})
	if err != nil {
		return configdrift.Reference{}, err
	}
	return Read(dir, version)
}

// programs read the ConfigMap. If both have a flag the agent's counts.
var programs = []string{"cilium-operator", agent}

const agent = "cilium-agent"

// configMaps are the paths of the ConfigMap's template in charts; the second is 1.8's.
var configMaps = []string{"templates/cilium-configmap.yaml", "charts/config/templates/configmap.yaml"}

var chartKey = regexp.MustCompile(`(?m)^ {2}"?([a-z0-9][a-z0-9-]*)"?:`)

// Read reads what a version states from the folder of its module.
func Read(dir, version string) (configdrift.Reference, error) {
	r := configdrift.Reference{Version: version, Keys: map[string]configdrift.Option{}}
	for _, name := range configMaps {
		text, err := os.ReadFile(filepath.Join(dir, "install/kubernetes/cilium", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return r, fmt.Errorf("reading the vendor's chart: %w", err)
		}
		for _, found := range chartKey.FindAllStringSubmatch(string(text), -1) {
			r.Keys[found[1]] = configdrift.Option{Type: configdrift.OfChart}
		}
	}
	for _, name := range programs {
		text, err := os.ReadFile(filepath.Join(dir, "Documentation/cmdref", name+".md"))
		if err != nil {
			return r, fmt.Errorf("reading the vendor's reference of commands: %w", err)
		}
		flags := parseHelp(string(text))
		if len(flags) == 0 {
			return r, fmt.Errorf("reading the vendor's reference of commands: %s has no flags", name)
		}
		for key, o := range flags {
			o.Operator = name != agent
			r.Keys[key] = o
		}
	}
	notes, err := Notes(filepath.Join(dir, "Documentation/operations"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // 1.8 has them elsewhere
		return r, err
	}
	r.Notes = aboutKeys(notes)
	return r, nil
}

// flagLine is a line of a program's help: name, type unless it is a bool, and description.
var flagLine = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9][a-z0-9-]*)(?: (\S+))?  +(.*)$`)

var byDefault = regexp.MustCompile(`.*\(default (.*)\)$`)

// helpTypes are the words for types in help that are not pflag's own names of them.
var helpTypes = map[string]string{
	"": "bool", "strings": "stringSlice", "ints": "intSlice", "uints": "uintSlice", "durations": "durationSlice", "float": "float64",
}

// notKeys are flags that are no keys: they say where the configuration is, or end the program.
var notKeys = []string{"config", "config-dir", "cmdref", "help", "version"}

func parseHelp(help string) map[string]configdrift.Option {
	flags := map[string]configdrift.Option{}
	for _, found := range flagLine.FindAllStringSubmatch(help, -1) {
		if slices.Contains(notKeys, found[1]) {
			continue
		}
		o := configdrift.Option{Type: found[2]}
		if kind, ok := helpTypes[o.Type]; ok {
			o.Type = kind
		}
		if given := byDefault.FindStringSubmatch(found[3]); given != nil {
			o.Default = parseDefault(o.Type, given[1])
		}
		o.Default = cmp.Or(o.Default, zero(o.Type))
		flags[found[1]] = o
	}
	return flags
}

// zero is the default that help leaves out.
func zero(kind string) string {
	switch {
	case kind == "bool":
		return "false"
	case kind == "duration":
		return "0s"
	case strings.HasSuffix(kind, "Slice"), kind == "stringToString":
		return "[]"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"), strings.HasPrefix(kind, "float"):
		return "0"
	}
	return ""
}

// parseDefault returns a default from help, without the quotes of texts. Another form is none: then it is the end of
// the description, and the default is the type's zero.
func parseDefault(kind, text string) string {
	var err error
	switch {
	case kind == "string":
		text, err = strconv.Unquote(text)
	case kind == "bool":
		_, err = strconv.ParseBool(text)
	case kind == "duration":
		_, err = time.ParseDuration(text)
	case strings.HasSuffix(kind, "Slice"), kind == "stringToString":
		if !strings.HasPrefix(text, "[") {
			return ""
		}
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		_, err = strconv.ParseInt(text, 10, 64)
	case strings.HasPrefix(kind, "float"):
		_, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		return ""
	}
	return text
}
