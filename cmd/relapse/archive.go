package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/archive"
)

func archiveCommand() *cobra.Command {
	var output, size string
	var redact bool
	cmd := &cobra.Command{
		Use:   "archive DIR",
		Short: "Pack a stored run for a vendor, with its addresses and names replaced if wanted",
		Long: `Archive packs a run's folder into one file for a vendor's issue tracker: a tar
archive, compressed with gzip, with report.json, report.html, the evidence and a
manifest of all hashes. Where that takes more than --max-size the largest files are
left out, which the manifest names; report.json and report.html never are.

--redact replaces addresses and the names of nodes, routers, hosts, pods, namespaces
and of this machine, the same by the same in all files. What was in one subnet is in
one subnet still, so that routes make sense; the last byte of an IPv4 address stays, and
so do the heads of private ranges. Names of services, workloads and networks stay, and
so do versions and what is the same everywhere, such as kube-system and 127.0.0.1.
"relapse judge" judges such a run as it judges the original, for it has the scenario:
whoever has that can tell the names and ranges that the scenario itself declares, and
no others. Look at the page before you hand it on.

Exit status: 0 packed; 2 bad input, or --max-size is too small.`,
		Args: oneArg("the folder of a run, such as reports/node-drain/latest"),
		RunE: func(cmd *cobra.Command, args []string) error {
			most, err := units.FromHumanSize(size)
			if err != nil || most <= 0 {
				return usagef("--max-size: %q is no size: expected one such as 25MB", size)
			}
			return archiveRun(cmd, args[0], output, archive.Options{MaxBytes: most, Redact: redact})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE` to write (default NAME-RUN.tar.gz, or NAME-RUN-redacted.tar.gz)")
	cmd.Flags().BoolVar(&redact, "redact", false, "replace addresses and names")
	// Of what GitHub takes: its limit is 25 MB, in one unit or the other.
	cmd.Flags().StringVar(&size, "max-size", "25MB", "how large the file may become, `SIZE`")
	return cmd
}

func archiveRun(cmd *cobra.Command, dir, output string, o archive.Options) error {
	run, err := readRun(dir)
	if err != nil {
		return err
	}
	if m, err := report.ReadManifest(run.dir); err != nil {
		return usagef("%w", err)
	} else if m != nil && m.Redaction != nil {
		return usagef("%s is of an archive in which addresses and names are replaced already", dir)
	}
	if output == "" {
		output = run.report.Scenario + "-" + run.report.Run + ".tar.gz"
		if o.Redact {
			output = run.report.Scenario + "-" + run.report.Run + "-redacted.tar.gz"
		}
	}
	if o.Redact {
		// A run of a scenario that the catalogue does not have any more can be packed, and
		// not be judged.
		if s, err := scenarioNamed(run.report.Scenario); err == nil {
			o.Declared = declaredBy(s)
		}
		if o.Machine, err = os.Hostname(); err != nil {
			return fmt.Errorf("asking for this machine's name, which is to be replaced: %w", err)
		}
	}
	m, err := archive.Write(run.dir, output, o)
	var large *archive.TooLargeError
	switch {
	case errors.Is(err, fs.ErrExist):
		return usagef("%s is there already: give another one with -o, or remove it", output)
	case errors.Is(err, fs.ErrNotExist):
		return usagef("%w", err)
	case errors.As(err, &large):
		return usagef("--max-size: %w", err)
	case err != nil:
		return err
	}
	info, err := os.Stat(output)
	if err != nil {
		return fmt.Errorf("packing the run: %w", err)
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s: %d files, %s\n", output, len(m.Files), units.HumanSize(float64(info.Size())))
	for _, f := range m.LeftOut {
		fmt.Fprintf(out, "left out %s (%s): %s\n", f.Path, units.HumanSize(float64(f.Bytes)), f.Why)
	}
	if r := m.Redaction; r != nil {
		fmt.Fprintf(out, "replaced %d addresses and ranges, %d names\n", r.Addresses, r.Names)
	}
	return nil
}

// declaredBy is what a scenario says of addresses and names.
func declaredBy(s framework.Scenario) archive.Declared {
	return archive.Declared{Topology: report.TopologyOf(s.Topology), Texts: engine.Texts(s)}
}

// restored is a run with the scenario's own addresses and names again, and what does the
// same to lines of its record; nil where they were not replaced.
func restored(run storedRun, s framework.Scenario) (storedRun, func([]byte) []byte, error) {
	m, err := report.ReadManifest(run.dir)
	if err != nil {
		return run, nil, usagef("%w", err)
	}
	if m == nil || m.Redaction == nil {
		return run, nil, nil
	}
	restore, err := archive.Restore(*m, declaredBy(s))
	if err != nil {
		return run, nil, err
	}
	run.report, err = report.ReadThrough(filepath.Join(run.dir, "report.json"), restore)
	return run, restore, err
}
