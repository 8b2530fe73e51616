// Command generate makes the table of package configdrift, cilium.json, as package
// tabulate says. The versions whose agents are asked are those of Cilium in the catalogue of images of
// which there are slices. Of all other releases from 1.12 on that the module proxy serves, the sources
// are read.
//
// Run it with go generate in the folder of configdrift. It takes a minute, and
// where the slices have not been built before, as long as that takes; with -keep no agent is asked. The
// sources of a release take 90 MB in Go's module cache. Go's checksum database lacks some releases:
// GONOSUMDB=github.com/cilium/cilium reads these all the same.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/tabulate"
	"github.com/relapse-dev/relapse/images"
)

func main() {
	root := flag.String("root", "../../..", "the `folder` of this repository")
	out := flag.String("out", "cilium.json", "the `file` to write")
	built := flag.String("agents", "", "a `folder` with the agents as VERSION/cilium-agent; empty: build them")
	sources := flag.String("sources", "", "a `folder` with the vendor's sources as cilium@vVERSION; empty: download them")
	keep := flag.Bool("keep", false, "keep what the table has from agents, and read sources alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := generate(ctx, *root, *built, *sources, *out, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "generate: "+err.Error())
		os.Exit(1)
	}
}

// patches are how many releases there are of the minors that images/cilium/releases.txt does not list,
// because no image of them is built.
var patches = map[string]int{"1.13": 19, "1.14": 20, "1.15": 20, "1.16": 20, "1.17": 18}

// oldest is the first release, beside those of the agents, whose sources are read.
const oldest = "1.12.0"

func generate(ctx context.Context, root, dir, sources, out string, keep bool) error {
	catalogue, err := images.Open(root)
	if err != nil {
		return err
	}
	table := configdrift.Cilium().OfAgents()
	if !keep {
		if table, err = ask(ctx, catalogue, dir); err != nil {
			return err
		}
	}
	dirs, err := sourcesIn(sources)
	if sources == "" {
		dirs, err = download(ctx, catalogue, table)
	}
	if err != nil {
		return err
	}
	if table, err = tabulate.Stated(table, dirs); err != nil {
		return err
	}
	return write(out, *table)
}

// download gets the sources of all releases that the module proxy serves, by version.
func download(ctx context.Context, catalogue *images.Catalogue, table *configdrift.Table) (map[string]string, error) {
	releases, err := catalogue.Releases(ctx, "cilium")
	if err != nil {
		return nil, err
	}
	var wanted []string
	for _, r := range releases.Versions {
		if table.Asked(r.Version) || semver.Compare("v"+r.Version, "v"+oldest) >= 0 && semver.Prerelease("v"+r.Version) == "" {
			wanted = append(wanted, r.Version)
		}
	}
	for minor, n := range patches {
		for patch := range n {
			wanted = append(wanted, fmt.Sprintf("%s.%d", minor, patch))
		}
	}
	dirs := map[string]string{}
	for _, version := range wanted {
		dir, err := images.Download(ctx, module.Version{Path: "github.com/cilium/cilium", Version: "v" + version})
		if missing := (*images.NotPublishedError)(nil); errors.As(err, &missing) && !table.Asked(version) {
			fmt.Fprintln(os.Stderr, "left out:", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		dirs[version] = dir
	}
	return dirs, nil
}

// sourcesIn are those that a folder has.
func sourcesIn(dir string) (map[string]string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "cilium@v*"))
	dirs := map[string]string{}
	for _, f := range found {
		_, version, _ := strings.Cut(filepath.Base(f), "@v")
		dirs[version] = f
	}
	return dirs, err
}

// ask asks the agents of the catalogue.
func ask(ctx context.Context, catalogue *images.Catalogue, dir string) (*configdrift.Table, error) {
	versions := agents.Versions(catalogue)
	built := agents.In(dir, versions)
	if dir == "" {
		dir, err := os.MkdirTemp("", "configdrift-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		fmt.Fprintln(os.Stderr, "building the agents")
		if built, err = agents.Build(ctx, catalogue, dir, versions); err != nil {
			return nil, err
		}
	}
	return tabulate.Cilium(ctx, catalogue, built, nil, func(version string) { fmt.Fprintln(os.Stderr, "asking", version) })
}

// write writes the table with a line for each key, so that a difference reads
// well.
func write(file string, t configdrift.Table) error {
	var text bytes.Buffer
	line := func(prefix string, v any, suffix string) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s%s%s\n", prefix, data, suffix)
		return nil
	}
	fmt.Fprintf(&text, "{\"component\":%q,\n\"versions\":[\n", t.Component)
	for i, v := range t.Versions {
		if err := line("", v, comma(i, len(t.Versions))); err != nil {
			return err
		}
	}
	text.WriteString("],\n\"keys\":{\n")
	names := slices.Sorted(maps.Keys(t.Keys))
	for i, key := range names {
		if err := line(strconv.Quote(key)+":", configdrift.Fold(t.Versions, t.Keys[key]), comma(i, len(names))); err != nil {
			return err
		}
	}
	text.WriteString("},\n\"notes\":{\n")
	named := slices.Sorted(maps.Keys(t.Notes))
	for i, key := range named {
		if err := line(strconv.Quote(key)+":", t.Notes[key], comma(i, len(named))); err != nil {
			return err
		}
	}
	text.WriteString("}}\n")
	return os.WriteFile(file, text.Bytes(), 0o644)
}

func comma(i, n int) string {
	if i == n-1 {
		return ""
	}
	return ","
}
