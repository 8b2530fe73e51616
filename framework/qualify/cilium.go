package qualify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/tabulate"
	"github.com/relapse-dev/relapse/images"
)

// ciliumReader asks slices of Cilium's agent.
type ciliumReader struct{}

func (ciliumReader) ConfigMap() string {
	_, name, _ := strings.Cut(cilium.ConfigMap, "/")
	return name
}

func (ciliumReader) Image(version string) string { return agents.Image(version) }

func (ciliumReader) Read(ctx context.Context, catalogue *images.Catalogue, in Inputs, config ConfigMap, step func(name string) func(error)) (Configuration, error) {
	dir, err := os.MkdirTemp("", "relapse-agents-")
	if err != nil {
		return Configuration{}, err
	}
	defer os.RemoveAll(dir)
	ended := step(fmt.Sprintf("build the slices of %s and %s", in.From, in.To))
	built, err := agents.Build(ctx, catalogue, dir, []string{in.From, in.To})
	ended(err)
	if why := notBuilt(err); why != "" {
		return Configuration{NotAsked: effect + why, Decides: true}, nil
	}
	if err != nil {
		return Configuration{}, err
	}
	ended = step("ask the slices about " + config.String())
	answers := make([]agents.Answer, len(built))
	asked, within := errgroup.WithContext(ctx)
	for i, a := range built {
		asked.Go(func() (err error) {
			answers[i], err = a.Effective(within, config.Data)
			return err
		})
	}
	err = errors.Join(asked.Wait(), unfit(built, answers))
	ended(err)
	if err != nil {
		return Configuration{}, err
	}
	table := configdrift.Cilium()
	if !table.Asked(in.From) || !table.Asked(in.To) {
		ended = step(fmt.Sprintf("ask the slices of %s and %s about each key", in.From, in.To))
		table, err = tabulate.Cilium(ctx, catalogue, built, table.OfAgents(), func(string) {})
		ended(err)
		if err != nil {
			return Configuration{}, err
		}
	}
	return compared(table, in, config.Data, answers[0], answers[1])
}

// unfit is an error if an agent has ended because of this machine: that says nothing about
// its version and the configuration.
func unfit(asked []agents.Agent, answers []agents.Answer) error {
	for i, answer := range answers {
		if answer.Elsewhere {
			return fmt.Errorf("the agent of %s does not run on this machine: %s", asked[i].Version, answer.Fatal)
		}
	}
	return nil
}

// notBuilt returns why a slice is not available; empty if the error says nothing about
// its version.
func notBuilt(err error) string {
	var (
		unknown *images.UnknownVersionError
		missing *images.NotPublishedError
		broken  *images.BuildError
	)
	switch {
	case errors.As(err, &unknown), errors.As(err, &missing) && missing.Required:
		return err.Error()
	case errors.As(err, &broken):
		return "the slice that reads it does not build: " + broken.Complaint()
	}
	return ""
}

// compared is what two answers and a table say of a configuration.
func compared(table *configdrift.Table, in Inputs, data map[string]string, from, to agents.Answer) (Configuration, error) {
	c := Configuration{RefusedFrom: from.Refuses(), RefusedTo: to.Refuses(), Effective: []Effective{}}
	var err error
	c.Drifts, err = table.Compare(configdrift.Setup{Version: in.From, Config: data}, configdrift.Setup{Version: in.To, Config: data})
	if err != nil {
		return c, err
	}
	if c.Drifts == nil {
		c.Drifts = []configdrift.Drift{} // it was checked
	}
	if from.Fatal != "" || to.Fatal != "" {
		return c, nil // one of them has read nothing
	}
	for field, before := range from.Fields {
		if after, both := to.Fields[field]; both && before != after {
			c.Effective = append(c.Effective, Effective{Field: field, From: before, To: after})
		}
	}
	if from.Masquerade != to.Masquerade {
		c.Effective = append(c.Effective, Effective{
			Field: "masquerading of IPv4", From: strconv.FormatBool(from.Masquerade), To: strconv.FormatBool(to.Masquerade),
		})
	}
	slices.SortFunc(c.Effective, func(a, b Effective) int { return strings.Compare(a.Field, b.Field) })
	return c, nil
}
