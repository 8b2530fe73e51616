package schema

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/must"
)

var update = flag.Bool("update", false, "write the schemas anew")

const (
	module = "github.com/relapse-dev/relapse/"
	root   = "../../../"
)

// written are the types that the schemas are made of.
var written = map[string]reflect.Type{
	"report":   reflect.TypeFor[report.Report](),
	"snapshot": reflect.TypeFor[snapshot.Snapshot](),
	"findings": reflect.TypeFor[[]detect.Finding](),
	"record":   reflect.TypeFor[history.Entry](),
	"rates":    reflect.TypeFor[framework.Rates](),
	"figures":  reflect.TypeFor[figures.File](),

	"qualification": reflect.TypeFor[qualify.Qualification](),

	"manifest": reflect.TypeFor[report.Manifest](),
}

// words are the values of fields that have few, by type and field.
var words = map[string][]any{
	"report.Report.Schema":    {report.Schema},
	"report.Manifest.Schema":  {report.ManifestSchema},
	"report.Manifest.Verdict": {"pass", "fail", "inconclusive", "observed"},
	"report.Report.Verdict":   {"pass", "fail", "inconclusive", "observed"},
	"report.Variant.Role":     {"affected", "fixed", "workaround", "unclassified"},
	"report.Variant.Form":     {"whole", "slice"},
	"report.Variant.Verdict":  verdicts,
	"report.Variant.Expected": append([]any{""}, verdicts...),
	"report.Repeat.Verdict":   verdicts,
	"detect.Finding.State":    states,
	"report.Remedy.Verdict":   {"recovers", "does-not-help", "unknown"},
	"report.Remedy.Expected":  {"recovers", "does-not-help"},

	"qualify.Qualification.Schema":  {qualify.Schema},
	"qualify.Qualification.Verdict": {qualify.Go, qualify.NoGo, qualify.Unknown},
	"qualify.Row.Part":              {qualify.PartPath, qualify.PartConfiguration, qualify.PartIncident, qualify.PartUpgrade},
	"qualify.Row.State":             {qualify.Fine, qualify.Warning, qualify.Fails, qualify.NotJudged, qualify.NotLookedAt},
	"qualify.Incident.Form":         {"whole", "slice"},
	"qualify.Incident.Outcome":      {advise.Fixed, advise.Introduced, advise.StillThere, advise.NeverThere, advise.NotJudgeable},
	"qualify.Seen.Outcome":          {"", bisect.Affected, bisect.Unaffected, bisect.Skipped},
}

var (
	verdicts = []any{"reproduced", "prevented", "refused", "missed", "vacuous", "unknown"}
	states   = []any{"hint", "latent", "settling", "active"}
)

func TestSchemasAreThoseOfTheTypes(t *testing.T) {
	for name, typ := range written {
		t.Run(name, func(t *testing.T) {
			got := generate(t, name, typ)
			file := name + ".json"
			if *update {
				must.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want := must.Read(t, file)
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not that of %s: go test ./framework/report/schema -update", file, typ)
			}
		})
	}
	must.Equal(t, "schemas", len(written), len(must.Get(fs.Glob(files, "*.json"))(t)))
}

func generate(t *testing.T, name string, typ reflect.Type) []byte {
	text := func() *jsonschema.Schema { return &jsonschema.Schema{Type: "string"} }
	options := &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{}}
	for _, written := range []reflect.Type{
		reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[netip.AddrPort](),
		reflect.TypeFor[framework.StepID](),
	} {
		options.TypeSchemas[written] = text()
	}
	// JSON writes numbers as keys as text.
	options.TypeSchemas[reflect.TypeFor[map[uint8]int]()] = &jsonschema.Schema{
		Types: []string{"null", "object"}, AdditionalProperties: &jsonschema.Schema{Type: "integer"},
	}
	s, err := jsonschema.ForType(typ, options)
	must.NoError(t, err)
	d := describer{t: t, text: reflect.TypeFor[encoding.TextMarshaler](), comments: map[string]map[string]string{}}
	d.describe(s, typ)
	if name == "report" { // package report does not know the machine's type
		if s.Properties["machine"], err = jsonschema.ForType(reflect.TypeFor[*host.Facts](), options); err != nil {
			t.Fatal(err)
		}
		d.describe(s.Properties["machine"], reflect.TypeFor[host.Facts]())
		s.Properties["machine"].Description = "What the run found of the machine."
	}
	s.Schema, s.Title = "https://json-schema.org/draft/2020-12/schema", "relapse: "+name
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", " ")
	encoder.SetEscapeHTML(false)
	must.NoError(t, encoder.Encode(s))
	return out.Bytes()
}

// describer gives schemas the comments of the types that they are made of.
type describer struct {
	t    *testing.T
	text reflect.Type
	// comments are the comments of fields, by package and then by type and field.
	comments map[string]map[string]string
}

func (d *describer) describe(s *jsonschema.Schema, typ reflect.Type) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch typ.Kind() {
	case reflect.Slice, reflect.Array:
		if s.Items != nil {
			d.describe(s.Items, typ.Elem())
		}
	case reflect.Map:
		s.Type, s.Types = "", []string{"null", "object"} // as slices may be
		if s.AdditionalProperties != nil {
			d.describe(s.AdditionalProperties, typ.Elem())
		}
	case reflect.Struct:
		if typ.Implements(d.text) {
			return // it is written as text
		}
		for field := range typ.Fields() {
			if field.Anonymous && field.Tag.Get("json") == "" {
				d.describe(s, field.Type)
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			property := s.Properties[name]
			if property == nil {
				continue
			}
			d.describe(property, field.Type)
			// A generic type's name includes the names of its arguments.
			owner, _, _ := strings.Cut(typ.Name(), "[")
			path := owner + "." + field.Name
			property.Description = d.commentsOf(typ.PkgPath())[path]
			if values := words[filepath.Base(typ.PkgPath())+"."+path]; values != nil {
				property.Enum = values
			}
		}
	}
}

func (d *describer) commentsOf(pkg string) map[string]string {
	dir, ours := strings.CutPrefix(pkg, module)
	if comments, ok := d.comments[pkg]; ok || !ours {
		return comments
	}
	all := map[string]string{}
	d.comments[pkg] = all
	for _, source := range must.Get(filepath.Glob(root + dir + "/*.go"))(d.t) {
		file := must.Get(parser.ParseFile(token.NewFileSet(), source, nil, parser.ParseComments))(d.t)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if structure, ok := spec.Type.(*ast.StructType); ok {
					for _, field := range structure.Fields.List {
						for _, name := range field.Names {
							comment := strings.Fields(field.Doc.Text() + " " + field.Comment.Text())
							all[spec.Name.Name+"."+name.Name] = strings.Join(comment, " ")
						}
					}
				}
			}
			return true
		})
	}
	return all
}

// Files that are in the tree meet their schemas. RELAPSE_REPORTS names a folder with
// stored runs that are to be looked at as well.
func TestFilesOfTheTree(t *testing.T) {
	checked := map[string]int{}
	dirs := []string{root + "cmd", root + "framework", root + "scenarios"}
	if more := os.Getenv("RELAPSE_REPORTS"); more != "" {
		dirs = append(dirs, more)
	}
	for _, dir := range dirs {
		must.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			name := Of(path)
			if strings.HasPrefix(path, root+"framework/report/testdata/") {
				name = "report"
			}
			if err != nil || e.IsDir() || name == "" || filepath.Base(filepath.Dir(path)) == "schema" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			checked[name]++
			if err := Validate(name, text); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			return nil
		}))
	}
	for _, name := range []string{"report", "rates", "figures"} {
		if checked[name] == 0 {
			t.Errorf("nothing with the schema %s was checked: %v", name, checked)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, test := range []struct{ name, document, says string }{
		{"rates", `{"uml": [{"rounds": 1, "struck": true, "count": 2}]}`, ""},
		{"rates", `{"uml": [{"rounds": 1, "struck": "yes", "count": 2}]}`, "struck"},
		{"rates", `{"uml": [{"rounds": 1, "count": 2}]}`, "struck"},
		{"findings", `[{"detector": "d", "kind": "k", "state": "loud", "object": "o", "routers": [], "says": "s"}]`, "state"},
		{"findings", `[{"more": 1, "detector": "d", "kind": "k", "state": "active", "object": "o", "routers": [], "says": "s"}]`, "more"},
		{"report", `{`, "reading"},
		{"none", `{}`, "no schema"},
	} {
		err := Validate(test.name, []byte(test.document))
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s %s: %v, want %q", test.name, test.document, err, test.says)
		}
	}
	for path, want := range map[string]string{
		"reports/a/latest/report.json": "report", "evidence/v/07-snapshot-at-failure.json": "snapshot",
		"09-pulls.json": "", "00-history.txt": "",
	} {
		must.Equal(t, path, want, Of(path))
	}
}
