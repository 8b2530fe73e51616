package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report/stored"
)

// Names of the files of a soak.
const (
	FileRuns = "runs.jsonl" // one Run per line
	FileJSON = "soak.json"
	FileText = "soak.txt"
)

// Heading is the first line: the verdict and why.
func (r Result) Heading() string {
	counts := map[framework.RunVerdict]int{}
	for _, o := range r.Others {
		counts[framework.RunVerdict(o.Verdict)]++
	}
	var why []string
	add := func(n int, one, several string) {
		switch {
		case n == 1:
			why = append(why, one)
		case n > 1:
			why = append(why, fmt.Sprintf(several, n))
		}
	}
	add(counts[framework.Fail], "one run did not have the expected verdicts", "%d runs did not have the expected verdicts")
	add(counts[framework.Inconclusive], "one run could not be judged", "%d runs could not be judged")
	for _, g := range r.grown() {
		why = append(why, g.What+" grows")
	}
	if len(r.Left) > 0 {
		why = append(why, "parts of a lab were left after it was taken down")
	}
	if r.Stopped != "" {
		why = append(why, r.Stopped)
	}
	switch {
	case r.Runs < Enough:
		why = append(why, fmt.Sprintf("too few runs to say what grows (at least %d)", Enough))
	case !r.compared():
		why = append(why, fmt.Sprintf("too few counts to say what grows (%d of each thing are needed, for those of a lab on one lab; %s says which failed)", Enough, FileRuns))
	}
	if len(why) == 0 {
		why = []string{"all verdicts as expected, and nothing grows steadily"}
	}
	return fmt.Sprintf("%s: %s: %s on %s in %s: %s", r.Scenario, strings.ToUpper(string(r.Verdict)), number(r.Runs, "run"), number(r.Labs, "lab"),
		(time.Duration(r.TookMS) * time.Millisecond).Round(time.Second), strings.Join(why, "; "))
}

func number(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Text is the result for a terminal.
func (r Result) Text() string {
	var out strings.Builder
	fmt.Fprintln(&out, r.Heading())
	table := func(head string, rows int, row func(i int) string) {
		if rows == 0 {
			return
		}
		t := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\n  "+head)
		for i := range rows {
			fmt.Fprintln(t, "  "+row(i))
		}
		t.Flush()
	}
	table("VARIANT\tEXPECTED\tVERDICT\tRUNS", len(r.Verdicts), func(i int) string {
		v := r.Verdicts[i]
		return fmt.Sprintf("%s\t%s\t%s\t%d", v.Variant, v.Expected, v.Verdict, v.Runs)
	})
	for _, o := range r.Others {
		fmt.Fprintf(&out, "\n  run %d, on lab %d: %s: %s\n", o.Run, o.Lab, o.Verdict, strings.Join(o.Why, "; "))
		if o.Report != "" {
			fmt.Fprintf(&out, "    %s\n", o.Report)
		}
	}
	table("TIME\tRUNS\tMIN\tMEDIAN\tMAX", len(r.Times), func(i int) string {
		t := r.Times[i]
		return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", t.What, t.Runs, duration(t.MinMS), duration(t.MedianMS), duration(t.MaxMS))
	})
	table("AFTER EACH RUN\tRUNS\tFIRST\tLAST\tMIN\tMAX\tEACH RUN\tGROWS", len(r.Growth), func(i int) string {
		g := r.Growth[i]
		grows := "not known"
		if g.Steadily != nil {
			grows = map[bool]string{false: "no", true: "STEADILY"}[*g.Steadily]
		}
		amount := func(n int64) string { return fmt.Sprint(n) }
		each := fmt.Sprintf("%+.2f", g.PerRun)
		if unitOf(g.What) == "bytes" {
			amount = func(n int64) string { return units.BytesSize(float64(n)) }
			sign := "+"
			if g.PerRun < 0 {
				sign = "-"
			}
			each = sign + units.BytesSize(max(g.PerRun, -g.PerRun))
		}
		return fmt.Sprintf("%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s", g.What, g.Runs, amount(g.First), amount(g.Last), amount(g.Min), amount(g.Max), each, grows)
	})
	if len(r.Growth) > 0 {
		fmt.Fprintf(&out, `
  STEADILY: over the last half of these runs, split in five parts, both the lowest and
  the highest value rise from each part to the next. It needs %d runs, for the lab %[1]d
  runs on one lab. EACH RUN is the median slope of that half.
`, Enough)
	}
	var other []string
	for _, q := range Quantities {
		if before, after := r.Before[q.Name], r.After[q.Name]; before != after {
			other = append(other, fmt.Sprintf("%s %d, now %d", q.Name, before, after))
		}
	}
	if len(other) > 0 {
		fmt.Fprintf(&out, "\n  Differences of the machine before the first lab and after the last one: %s\n", strings.Join(other, "; "))
	}
	for _, what := range r.Left {
		fmt.Fprintf(&out, "\n  left behind: %s\n", what)
	}
	return out.String()
}

func unitOf(name string) string {
	for _, q := range Quantities {
		if q.Name == name {
			return q.Unit
		}
	}
	return ""
}

func duration(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return fmt.Sprintf("%.1f s", float64(ms)/1000)
}

// Write stores the result in a folder, as text and JSON.
func (r Result) Write(dir string) error {
	if err := stored.Write(dir, FileJSON, r, map[string]string{FileText: r.Text()}); err != nil {
		return fmt.Errorf("writing the result of the soak: %w", err)
	}
	return nil
}

// Append adds a run to those of a folder.
func (r Run) Append(dir string) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = appendLine(filepath.Join(dir, FileRuns), text)
	}
	if err != nil {
		return fmt.Errorf("storing run %d: %w", r.Number, err)
	}
	return nil
}

func appendLine(path string, line []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// Read reads the runs of a folder. A last line that a full disk has cut short is left
// out.
func Read(dir string) ([]Run, error) {
	text, err := os.ReadFile(filepath.Join(dir, FileRuns))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the runs of the soak: %w", err)
	}
	var runs []Run
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var run Run
		if err := json.Unmarshal([]byte(line), &run); err != nil {
			return runs, fmt.Errorf("reading the runs of the soak: %w", err)
		}
		runs = append(runs, run)
	}
	return runs, nil
}
