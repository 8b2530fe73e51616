// Command generate makes the table of package configdrift, cilium.json, as package
// tabulate says. The versions are those of Cilium in the catalogue of images.
//
// Run it with go generate in the folder of configdrift. It takes a minute, and
// where the slices have not been built before, as long as that takes.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/tabulate"
	"github.com/relapse-dev/relapse/images"
)

func main() {
	root := flag.String("root", "../../..", "the `folder` of this repository")
	out := flag.String("out", "cilium.json", "the `file` to write")
	built := flag.String("agents", "", "a `folder` with the agents as VERSION/cilium-agent; empty: build them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := generate(ctx, *root, *built, *out); err != nil {
		fmt.Fprintln(os.Stderr, "generate: "+err.Error())
		os.Exit(1)
	}
}

func generate(ctx context.Context, root, dir, out string) error {
	catalogue, err := images.Open(root)
	if err != nil {
		return err
	}
	versions := agents.Versions(catalogue)
	built := agents.In(dir, versions)
	if dir == "" {
		dir, err := os.MkdirTemp("", "configdrift-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		fmt.Fprintln(os.Stderr, "building the agents")
		if built, err = agents.Build(ctx, catalogue, dir, versions); err != nil {
			return err
		}
	}
	table, err := tabulate.Cilium(ctx, catalogue, built, nil, func(version string) { fmt.Fprintln(os.Stderr, "asking", version) })
	if err != nil {
		return err
	}
	return write(out, *table)
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
	text.WriteString("}}\n")
	return os.WriteFile(file, text.Bytes(), 0o644)
}

func comma(i, n int) string {
	if i == n-1 {
		return ""
	}
	return ","
}
