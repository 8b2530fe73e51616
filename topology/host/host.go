// Package host checks whether this machine can run a lab, and prepares it.
//
// Inspect changes nothing. Setup installs Debian packages, raises the kernel's
// inotify limits, switches memory pages of 64 KiB on, starts Docker and, on machines
// that do not grant root every capability, registers the OCI runtime runc-caps with
// it. It announces each step before it takes it. Undo reverts the changes to the
// kernel and to Docker's configuration. No other kernel setting is changed.
//
// The package needs Linux and root: a lab consists of network namespaces.
package host

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"text/tabwriter"

	"github.com/relapse-dev/relapse/topology/each"
)

// Needs are requirements of a caller beyond the requirements of every lab.
type Needs struct {
	// Packages are Debian packages, without Docker: that may be installed from
	// another source, and has its own check.
	Packages []string
	// ImageCache is the directory of built images. It need not exist yet.
	ImageCache string
	// Subnets are the networks of labs, which no route of the machine may overlap, with
	// their names.
	Subnets map[netip.Prefix]string
}

// State is the outcome of a check.
type State string

// Outcomes of a check.
const (
	OK      State = "ok"
	Curable State = "curable" // Setup can cure it
	Fatal   State = "fatal"   // only the machine's owner can
)

// Check is the result of one check.
type Check struct {
	Name  string
	State State
	Found string // what is there
	Want  string // what must be there: a sentence without its full stop
	// Cure is a command, or an instruction where no command is enough. It is empty
	// when State is OK.
	Cure string
}

// String is the check in one sentence.
func (c Check) String() string {
	if c.State == OK {
		return c.Name + ": " + c.Found
	}
	return fmt.Sprintf("%s (found: %s): %s", c.Want, c.Found, c.Cure)
}

// Facts identify the machine in a report.
type Facts struct {
	Kernel    string `json:"kernel"` // release, as uname -r prints it
	CPUs      int    `json:"cpus"`
	MemoryGiB int    `json:"memory_gib"` // rounded to the nearest GiB
	Docker    string `json:"docker"`     // the engine's version; empty if none answers
}

// Report is what an inspection found.
type Report struct {
	Checks []Check
	Facts  Facts
}

// UnfitError says why a machine cannot run a lab.
type UnfitError struct {
	Checks []Check // not OK
}

// Error is one sentence for each failed check, one per line.
func (e *UnfitError) Error() string {
	return each.Joined(e.Checks, "\n", Check.String)
}

// RelapseStatus is 3: the machine cannot run it.
func (*UnfitError) RelapseStatus() int { return 3 }

// Err returns an *UnfitError with every check that is not OK, or nil.
func (r Report) Err() error { return r.unfit(Curable, Fatal) }

func (r Report) unfit(states ...State) error {
	failed := slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return !slices.Contains(states, c.State) })
	if len(failed) == 0 {
		return nil
	}
	return &UnfitError{Checks: failed}
}

// Write prints the report as a table, each failed check with what was wanted and its cure.
func (r Report) Write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.State, c.Name, c.Found)
		if c.State != OK {
			fmt.Fprintf(table, "\t\twanted: %s\n\t\tcure: %s\n", c.Want, c.Cure)
		}
	}
	return table.Flush()
}

// Inspect checks the machine. If a Docker engine answers, it imports an image of
// 129 bytes, runs it once as a privileged container without a network, and
// removes both: only that shows whether Docker can.
func Inspect(ctx context.Context, needs Needs) Report { return this.observe(ctx, needs).judge() }
