package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/archive"
	"github.com/relapse-dev/relapse/framework/report/plain"
)

func archiveCommand() *cobra.Command {
	var output, size string
	var redact bool
	cmd := &cobra.Command{
		Use:   "archive DIR",
		Short: "Pack a stored run for a vendor; can replace addresses and names",
		Long: `Archive packs a run's folder into one file for a vendor's issue tracker, with a manifest of
all hashes. If it would exceed --max-size, the largest files are left out. --redact replaces
addresses and names, the same one by the same in all files; check the page before you send it.
framework/report/README.md says what is replaced.

Exit status: 0 packed; 2 bad input, or --max-size is too small.`,
		Args: portable.ExactArgs(1, "the folder of a run, such as reports/node-drain/latest"),
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
	if m, err := report.ReadManifest(run.Dir); err != nil {
		return usagef("%w", err)
	} else if m != nil && m.Redaction != nil {
		return usagef("%s is from an archive in which addresses and names are replaced already", dir)
	}
	if output == "" {
		output = run.Report.Scenario + "-" + run.Report.Run + ".tar.gz"
		if o.Redact {
			output = run.Report.Scenario + "-" + run.Report.Run + "-redacted.tar.gz"
		}
	}
	if o.Redact {
		if o.Machine, err = os.Hostname(); err != nil {
			return fmt.Errorf("reading this machine's name, to replace it: %w", err)
		}
	}
	m, err := archive.Write(run.Dir, output, o)
	switch {
	case errors.Is(err, fs.ErrExist):
		return usagef("%s exists already: choose another file with -o, or remove it", output)
	case errors.Is(err, fs.ErrNotExist):
		return usagef("%w", err)
	case errors.As(err, new(*archive.TooLargeError)):
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
