package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/tabulate"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/images"
)

// readConfig reads the ConfigMap of a file, or of standard input where that is -; nil
// where no file is named.
func readConfig(file string, stdin io.Reader) (*qualify.ConfigMap, error) {
	if file == "" {
		return nil, nil
	}
	stream, name := stdin, "standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usagef("--config: %w", err)
		}
		defer f.Close()
		stream, name = f, file
	}
	// Streams of one ConfigMap may call it anything.
	_, known, _ := strings.Cut(cilium.ConfigMap, "/")
	c, err := qualify.ReadConfigMap(stream, known)
	if err != nil {
		return nil, usagef("--config: %s: %w", name, err)
	}
	return &c, nil
}

// sliceKnown has the catalogue know the slice of a version that reads configurations.
func sliceKnown(c *images.Catalogue, version string) error {
	return makeKnown(c, []string{agents.Image(version)})
}

// askCilium asks the slices of both versions what they make of a configuration. A
// version whose slice cannot be built is told in the result.
func askCilium(ctx context.Context, catalogue *images.Catalogue, in qualify.Inputs, config qualify.ConfigMap, step func(name string) func(error)) (qualify.Configuration, error) {
	var c qualify.Configuration
	dir, err := os.MkdirTemp("", "relapse-agents-")
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	versions := []string{in.From, in.To}
	ended := step(fmt.Sprintf("the slices of %s and %s are built", in.From, in.To))
	built, err := agents.Build(ctx, catalogue, dir, versions)
	ended(err)
	var (
		unknown *images.UnknownVersionError
		missing *images.NotPublishedError
		broken  *images.BuildError
	)
	switch {
	case errors.As(err, &unknown), errors.As(err, &missing) && missing.Required:
		c.NotAsked, c.Decides = fmt.Sprintf("what becomes of the configuration: %v", err), true
		return c, nil
	case errors.As(err, &broken):
		c.NotAsked, c.Decides = fmt.Sprintf("what becomes of the configuration: the slice that says is not built: %s", broken.Complaint()), true
		return c, nil
	case err != nil:
		return c, err
	}
	ended = step("the slices are asked about " + config.String())
	answers := make([]agents.Answer, len(built))
	asked, within := errgroup.WithContext(ctx)
	for i, a := range built {
		asked.Go(func() (err error) {
			answers[i], err = a.Effective(within, config.Data)
			return err
		})
	}
	err = asked.Wait()
	ended(err)
	if err != nil {
		return c, err
	}
	table := configdrift.Cilium()
	if !table.Knows(in.From) || !table.Knows(in.To) {
		ended = step(fmt.Sprintf("the slices of %s and %s are asked about each key", in.From, in.To))
		table, err = tabulate.Cilium(ctx, catalogue, built, table, func(string) {})
		ended(err)
		if err != nil {
			return c, err
		}
	}
	return configuration(table, in, config.Data, answers[0], answers[1])
}

// configuration is what two answers and a table say of a configuration.
func configuration(table *configdrift.Table, in qualify.Inputs, data map[string]string, from, to agents.Answer) (qualify.Configuration, error) {
	c := qualify.Configuration{RefusedFrom: from.Refuses(), RefusedTo: to.Refuses(), Effective: []qualify.Effective{}}
	var err error
	c.Drifts, err = table.Compare(configdrift.Setup{Version: in.From, Config: data}, configdrift.Setup{Version: in.To, Config: data})
	if err != nil {
		return c, err
	}
	if c.Drifts == nil {
		c.Drifts = []configdrift.Drift{} // it was looked at
	}
	if from.Fatal != "" || to.Fatal != "" {
		return c, nil // one of them has read nothing
	}
	for field, before := range from.Fields {
		if after, both := to.Fields[field]; both && before != after {
			c.Effective = append(c.Effective, qualify.Effective{Field: field, From: before, To: after})
		}
	}
	if from.Masquerade != to.Masquerade {
		c.Effective = append(c.Effective, qualify.Effective{
			Field: "masquerading of IPv4", From: strconv.FormatBool(from.Masquerade), To: strconv.FormatBool(to.Masquerade),
		})
	}
	slices.SortFunc(c.Effective, func(a, b qualify.Effective) int { return strings.Compare(a.Field, b.Field) })
	return c, nil
}
