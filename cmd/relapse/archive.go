package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/archive"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/verdict"
)

func archiveCommand() *cobra.Command {
	var output, size string
	var redact bool
	cmd := &cobra.Command{
		Use:   "archive DIR",
		Short: "Pack a stored run for a vendor; can replace addresses and names",
		Long: `Archive packs a run's folder into one file for a vendor's issue tracker: a tar archive,
compressed with gzip, with report.json, report.html, the evidence and a manifest with all
hashes. If it would exceed --max-size, the largest files are left out, and the manifest
names them; report.json and report.html are always included.

--redact replaces addresses and the names of nodes, routers, hosts, pods, namespaces and
of this machine, each by the same replacement in all files. Addresses of one subnet stay
in one subnet, so that routes make sense; the last byte of an IPv4 address and the first
bytes of private ranges stay. Names of services, workloads and networks stay, and so do
versions and common values such as kube-system and 127.0.0.1.
"relapse judge" judges such a run like the original, because it knows the scenario.
Anyone with the scenario can recover the names and ranges that it declares, and no
others. Check the page before you send it.

Exit status: 0 packed; 2 bad input, or --max-size is too small.`,
		Args: exactArgs(1, "the folder of a run, such as reports/node-drain/latest"),
		RunE: func(cmd *cobra.Command, args []string) error {
			most, err := units.FromHumanSize(size)
			if err != nil || most <= 0 {
				return usagef("--max-size: %q is not a size: expected one such as 25MB", size)
			}
			return archiveRun(cmd, args[0], output, archive.Options{MaxBytes: most, Redact: redact})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE` to write (default NAME-RUN.tar.gz, or NAME-RUN-redacted.tar.gz)")
	cmd.Flags().BoolVar(&redact, "redact", false, "replace addresses and names")
	// GitHub accepts 25 MB.
	cmd.Flags().StringVar(&size, "max-size", "25MB", "the largest `SIZE` of the file")
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
		return usagef("%s is from an archive in which addresses and names are replaced already", dir)
	}
	if output == "" {
		output = run.report.Scenario + "-" + run.report.Run + ".tar.gz"
		if o.Redact {
			output = run.report.Scenario + "-" + run.report.Run + "-redacted.tar.gz"
		}
	}
	if o.Redact {
		// A run of a scenario that is no longer in the catalogue can be packed, but not
		// judged.
		if s, err := scenarioNamed(run.report.Scenario); err == nil {
			o.Declared = declaredBy(s, run.report)
		}
		if o.Machine, err = os.Hostname(); err != nil {
			return fmt.Errorf("reading this machine's name, to replace it: %w", err)
		}
	}
	m, err := archive.Write(run.dir, output, o)
	var large *archive.TooLargeError
	switch {
	case errors.Is(err, fs.ErrExist):
		return usagef("%s exists already: choose another file with -o, or remove it", output)
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
	out := plain.Writer(cmd.OutOrStdout())
	fmt.Fprintf(out, "%s: %d files, %s\n", output, len(m.Files), units.HumanSize(float64(info.Size())))
	for _, f := range m.LeftOut {
		fmt.Fprintf(out, "left out %s (%s): %s\n", f.Path, units.HumanSize(float64(f.Bytes)), f.Why)
	}
	if r := m.Redaction; r != nil {
		fmt.Fprintf(out, "replaced %d addresses and ranges, %d names\n", r.Addresses, r.Names)
	}
	return nil
}

// declaredBy are the addresses and names that a scenario declares, with those of the second
// lab if variants of the run were on one.
func declaredBy(s framework.Scenario, r report.Report) archive.Declared {
	d := archive.Declared{Topology: report.TopologyOf(s.Topology), Texts: verdict.Texts(s)}
	second, err := s.OnSecondLab(nil)
	if err == nil && slices.ContainsFunc(r.Variants, func(v report.Variant) bool { return v.Topology != nil }) {
		for _, n := range second.Topology.Networks {
			d.Texts = append(d.Texts, n.Subnet.String())
		}
		d.Texts = append(d.Texts, verdict.Texts(second)...)
	}
	return d
}

// restored is a run with the scenario's own addresses and names, and the function that
// restores lines of its record; nil if they were not replaced.
func restored(run storedRun, s framework.Scenario) (storedRun, func([]byte) []byte, error) {
	m, err := report.ReadManifest(run.dir)
	if err != nil {
		return run, nil, usagef("%w", err)
	}
	if m == nil || m.Redaction == nil {
		return run, nil, nil
	}
	restore, err := archive.Restore(*m, declaredBy(s, run.report))
	if err != nil {
		return run, nil, err
	}
	run.report, err = report.ReadThrough(filepath.Join(run.dir, "report.json"), restore)
	return run, restore, err
}
