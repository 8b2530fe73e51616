package render

import (
	_ "embed"
	"html/template"
	"io"
	"time"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/report/page"
)

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
	// Chip is the word for the outcome, and Class its style, which is that of a run's verdict.
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
