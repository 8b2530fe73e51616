package render

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/plain"
)

var formats = []struct {
	name  string
	write func(io.Writer, audit.Result) error
}{
	{"text", Text}, {"json", JSON}, {"yaml", YAML}, {"sarif", SARIF}, {"openmetrics", OpenMetrics}, {"html", HTML},
}

// Formats are the names of the formats.
func Formats() []string {
	var names []string
	for _, f := range formats {
		names = append(names, f.name)
	}
	return names
}

// Write writes a result in one of the formats.
func Write(to io.Writer, format string, r audit.Result) error {
	for _, f := range formats {
		if f.name == format {
			return f.write(to, r)
		}
	}
	return fmt.Errorf("there is no format %q", format)
}

// JSON writes a result for programs, under audit.Schema.
func JSON(to io.Writer, r audit.Result) error { return encode(to, r) }

// YAML writes the same fields as JSON.
func YAML(to io.Writer, r audit.Result) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	if text, err = yaml.Marshal(value); err != nil {
		return err
	}
	_, err = to.Write(plain.JSON(text))
	return err
}

// encode writes a value as JSON, without control characters.
func encode(to io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = to.Write(append(plain.JSON(text), '\n'))
	return err
}

// shown returns a result with control characters escaped.
func shown(r audit.Result) (audit.Result, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return r, err
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return r, err
	}
	if text, err = json.Marshal(lines(value)); err != nil {
		return r, err
	}
	var to audit.Result
	err = json.Unmarshal(text, &to)
	return to, err
}

// lines has each text of a JSON value on one line.
func lines(value any) any {
	switch v := value.(type) {
	case string:
		return plain.Line(v)
	case []any:
		for i := range v {
			v[i] = lines(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = lines(v[key])
		}
	}
	return value
}

// stated is a finding with the state to print: its own, or once.
type stated struct {
	audit.Finding
	State string
}

// once is the printed state of a finding that only one of the last two reads has.
const once = "once"

// all returns the findings that count, the worst first.
func all(r audit.Result) (found []stated) {
	for _, g := range groups(r) {
		for _, f := range g.Findings {
			found = append(found, stated{f, g.State})
		}
	}
	return found
}

var (
	//go:embed audit.gohtml
	htmlText     string
	htmlTemplate = template.Must(template.New("audit").Funcs(template.FuncMap{
		"style":   page.Style,
		"date":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"objects": objects,
		"why":     why,
		"unused":  unused,
	}).Parse(htmlText))
)

type view struct {
	audit.Result
	Head, Summary string
	// Chip is the word for the outcome, and Class its style, which is the style of a run's verdict.
	Chip, Class string
	Gaps        []gap
	Groups      []group
}

// HTML writes a result as one page that loads nothing.
func HTML(to io.Writer, r audit.Result) error {
	r, err := shown(r)
	if err != nil {
		return err
	}
	v := view{Result: r, Head: head(r), Summary: Summary(r), Gaps: gaps(r), Groups: groups(r)}
	switch r.Outcome() {
	case audit.SomeActive:
		v.Chip, v.Class = "✘ ACTIVE", "fail"
	case audit.SomeLatent:
		v.Chip, v.Class = "! LATENT", "inconclusive"
	case audit.Unsettled:
		v.Chip, v.Class = "? OPEN", "inconclusive"
	default:
		v.Chip, v.Class = "✔ NOTHING FOUND", "pass"
	}
	return htmlTemplate.Execute(to, v)
}
