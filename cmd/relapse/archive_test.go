package main

import (
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// What is in an archive is tested in package archive.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	run, replaced := storeRun(t, dir, nil), storeRun(t, dir, nil)
	there := must.Write(t, filepath.Join(dir, "there.tar.gz"), "")
	must.Write(t, filepath.Join(replaced, report.ManifestName),
		`{"schema":"relapse.archive/v1","files":[],"redaction":{"addresses":1,"names":1}}`)
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, test := range []use{
		{"as it is", []string{"archive", run, "-o", file("a.tar.gz")}, exitExpected, "a.tar.gz: 1 files, "},
		{"with other names", []string{"archive", run, "--redact", "-o", file("b.tar.gz")}, exitExpected, "replaced "},
		{"too small", []string{"archive", run, "--max-size", "1B", "-o", file("c.tar.gz")}, exitUsage, "--max-size: report.json, report.html and the manifest alone take"},
		{"no size", []string{"archive", run, "--max-size", "small"}, exitUsage, `--max-size: "small" is not a size`},
		{"over another file", []string{"archive", run, "-o", there}, exitUsage, "exists already: choose another file with -o"},
		{"into no folder", []string{"archive", run, "-o", file("no/a.tar.gz")}, exitUsage, "no such file"},
		{"no run", []string{"archive", file("none")}, exitUsage, "finding a run"},
		{"nothing", []string{"archive"}, exitUsage, "takes one argument, the folder of a run"},
		{"replaced already", []string{"archive", replaced, "--redact"}, exitUsage, "addresses and names are replaced already"},
		{"judged", []string{"judge", replaced}, exitInconclusive, "its addresses and names were replaced, which cannot be undone"},
	} {
		test.run(t)
	}
}
