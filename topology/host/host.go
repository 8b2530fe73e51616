// Package host finds out whether this machine can run a lab, and makes it
// able to where that can be done.
//
// Inspect only looks. Setup installs Debian packages, raises the kernel's
// limits of inotify, starts Docker and, on machines that do not grant root
// every capability, registers the OCI runtime runc-caps with it; it says each
// step before it takes it. Undo takes back the changes to the limits and to
// Docker's configuration. No other sysctl is touched.
//
// Everything is Linux and root: a lab is made of network namespaces.
package host

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Needs is what a caller asks of the machine beyond what every lab needs.
type Needs struct {
	// Packages are Debian packages. Docker is not one of them: it may come
	// from elsewhere, and is looked for by itself.
	Packages []string
	// ImageCache is the directory of built images. It need not exist yet.
	ImageCache string
}

// State is the outcome of a check.
type State string

// Outcomes of a check.
const (
	OK      State = "ok"
	Curable State = "curable" // Setup can mend it
	Fatal   State = "fatal"   // only the machine's owner can
)

// Check is one thing that was looked at.
type Check struct {
	Name  string
	State State
	Found string // what is there
	Want  string // what must be there: a sentence without its full stop
	// Cure is the command that mends it, or what to do where no command
	// does. Empty when State is OK.
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
	Docker    string `json:"docker"`     // the engine's version; empty when none answers
}

// Report is what an inspection found.
type Report struct {
	Checks []Check
	Facts  Facts
}

// UnfitError says why a machine cannot run a lab.
type UnfitError struct {
	Checks []Check // those that are not OK
}

// Error is one sentence for each failed check, each on a line of its own.
func (e *UnfitError) Error() string {
	lines := make([]string, len(e.Checks))
	for i, c := range e.Checks {
		lines[i] = c.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns an *UnfitError with every check that is not OK, or nil.
func (r Report) Err() error { return r.unfit(Curable, Fatal) }

func (r Report) unfit(states ...State) error {
	var failed []Check
	for _, c := range r.Checks {
		for _, s := range states {
			if c.State == s {
				failed = append(failed, c)
			}
		}
	}
	if failed == nil {
		return nil
	}
	return &UnfitError{Checks: failed}
}

// Write prints the report as a table, each failed check followed by what
// would be right and what cures it.
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

// Inspect looks at the machine and changes nothing on it. Where a Docker
// engine answers, it imports an image of 129 bytes, runs it once as a
// privileged container without a network, and removes both: nothing less
// shows that Docker can.
func Inspect(ctx context.Context, needs Needs) Report {
	return this.observe(ctx, needs).judge()
}
