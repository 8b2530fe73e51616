package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/report/schema"
)

type redactor struct {
	*Dictionary
	run, to *rundir.Folder
	report  report.Report
}

// redact writes the run in a folder to another folder. All files go through the dictionary twice: first
// it notes what they name.
func redact(run *rundir.Folder, to string, r report.Report, o Options) (*report.Redaction, []report.LeftOut, error) {
	paths, err := filesOf(run)
	if err != nil {
		return nil, nil, err
	}
	target, err := rundir.Open(to)
	if err != nil {
		return nil, nil, err
	}
	defer target.Close()
	x := redactor{NewDictionary(), run, target, r}
	x.namesOf(r.Topology)
	for _, v := range r.Variants {
		x.namesOf(v.Topology)
	}
	x.Name("machine", o.Machine)
	var left []report.LeftOut
	var readable []string
	for _, name := range paths {
		switch text, err := x.isText(name); {
		case err != nil:
			return nil, nil, err
		case !text:
			p := packer{}
			if err := p.add(run, name); err != nil {
				return nil, nil, err
			}
			left = append(left, report.LeftOut{Packed: p.members[0].Packed, Why: "not a text file: names in it cannot be replaced"})
		case name != page.Name && name != junit.Name: // which are rendered from the redacted report
			readable = append(readable, name)
		}
	}
	each := func(do func(name string) error) error {
		for _, name := range readable {
			if err := do(name); err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(func(name string) error { return x.write(name, io.Discard) }); err != nil {
		return nil, nil, err
	}
	redaction := &report.Redaction{}
	if redaction.Addresses, redaction.Names, err = x.Choose(); err != nil {
		return nil, nil, err
	}
	for i := range left {
		left[i].Path = x.path(left[i].Path)
	}
	if err := each(func(name string) error {
		return target.ReplaceWith(x.path(name), func(file io.Writer) error { return x.write(name, file) })
	}); err != nil {
		return nil, nil, err
	}
	redacted, err := report.Read(filepath.Join(to, "report.json"))
	if err == nil && slices.Contains(paths, junit.Name) {
		err = junit.Write(junit.InFolder(to), redacted)
	}
	return redaction, left, errors.Join(err, page.Write(to, nil))
}

func (x redactor) namesOf(t *report.Topology) {
	if t == nil {
		return
	}
	for _, m := range t.Members {
		x.Name(m.Kind, m.Name)
	}
}

// podMentions are how programs write the names of pods.
var podMentions = []*regexp.Regexp{
	regexp.MustCompile(`\bpods?\\?"?[=:] ?\[?\\?"([a-z0-9-]+)/([a-z0-9.-]+)\\?"`),
	regexp.MustCompile(`/var/log/pods/([a-z0-9-]+)_([a-z0-9.-]+)_`),
	regexp.MustCompile(`PodSandbox for ()name:\\*"([a-z0-9.-]+)\\*"`),
}

// isText reports whether names can be replaced in a file. It notes the pods that a text mentions.
func (x redactor) isText(name string) (bool, error) {
	if path.Ext(name) == ".zst" {
		return true, nil
	}
	content, err := x.run.ReadFile(name)
	if err != nil || bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content) {
		return false, err
	}
	for _, e := range podMentions {
		for _, m := range e.FindAllStringSubmatch(string(content), -1) {
			x.pod(m[1], m[2])
		}
	}
	return true, nil
}

// path is the path of a file with names replaced in its last element. Its folders have the
// names of variants, which stay.
func (x redactor) path(name string) string {
	folder, base := path.Split(name)
	return folder + x.Text(base)
}

func (x redactor) write(name string, to io.Writer) error {
	if path.Ext(name) == ".zst" {
		return x.writeRecord(name, to)
	}
	text, err := x.run.ReadFile(name)
	if err != nil {
		return err
	}
	switch {
	case name == "report.json":
		text, err = json.MarshalIndent(withoutPlaces(x.report), "", "  ")
		text = x.JSON(text)
	case schema.Of(name) == "snapshot":
		text = x.Snapshot(text)
	case path.Ext(name) == ".json":
		text = x.JSON(text)
	default:
		text = []byte(x.Text(string(text)))
	}
	if err == nil {
		_, err = to.Write(text)
	}
	return err
}

func (x redactor) writeRecord(name string, to io.Writer) error {
	out, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	err = x.run.Lines(name, func(line []byte) (bool, error) {
		if !json.Valid(line) {
			return false, &rundir.UnsafeError{Path: name, Why: "a line of it is no JSON"}
		}
		_, err := out.Write(append(x.JSON(line), '\n'))
		return true, err
	})
	return errors.Join(err, out.Close())
}

// harmlessFlags are the flags of a run whose values name no file, host or person. Everybody has the
// registries.
var (
	harmlessFlags = []string{"--variant", "--label", "--ablate", "--repeat", "--with", "--images"}
	registries    = []string{"docker.io", "registry-1.docker.io", "quay.io", "registry.k8s.io", "ghcr.io", "gcr.io"}
)

// withoutPlaces is a report without the machine's paths and mirrors. The command keeps the scenario, its flags,
// and the values of harmless flags alone; the origins of images keep public registries.
func withoutPlaces(r report.Report) report.Report {
	if r.Command != "" {
		words := []string{"relapse", "run", r.Scenario}
		for _, word := range strings.Fields(r.Command) {
			name, value, _ := strings.Cut(strings.Trim(word, `'"`), "=")
			switch {
			case !strings.HasPrefix(name, "--"):
			case slices.Contains(harmlessFlags, name) && value != "" && !strings.ContainsAny(value, `/\@:`):
				words = append(words, name+"="+value)
			default:
				words = append(words, name)
			}
		}
		r.Command = strings.Join(words, " ")
	}
	r.Origins = maps.Clone(r.Origins)
	for ref, origin := range r.Origins {
		host, _, _ := strings.Cut(strings.TrimPrefix(origin, "https://"), "@")
		if host = strings.TrimSuffix(host, "/"); origin != report.Built && !slices.Contains(registries, host) {
			r.Origins[ref] = "a mirror"
		}
	}
	return r
}
