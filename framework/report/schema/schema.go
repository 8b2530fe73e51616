// Package schema holds the JSON schemas (draft 2020-12) of what relapse writes for
// other programs to read, one file each:
//
//	report.json         report.json of a run
//	snapshot.json       evidence NN-snapshot-*.json
//	findings.json       evidence NN-findings*.json
//	record.json         each line of evidence record.jsonl.zst
//	rates.json          rates.json beside a scenario with a probabilistic incident
//	figures.json        framework/figures/figures.json
//	qualification.json  qualification.json of a qualification
//	manifest.json       manifest.json of a run that was packed
//
// They are generated from the Go types, with the comments of the fields. A test fails if
// one is stale (go test ./framework/report/schema -update writes them), and others validate
// what relapse writes against them. Evidence that a scenario adds is output of the vendors'
// programs and has no schema.
package schema

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/relapse-dev/relapse/framework/report"
)

//go:embed *.json
var files embed.FS

// Of names the schema of a file by its path; empty where it has none.
func Of(path string) string {
	name := filepath.Base(path)
	if kind, _ := report.EvidenceOf(name); kind != "" {
		return kind
	}
	documents := []string{"report", "rates", "figures", "qualification", "manifest"}
	if name, ok := strings.CutSuffix(name, ".json"); ok && slices.Contains(documents, name) {
		return name
	}
	return ""
}

// Validate checks a document against the schema of a name. The error says where it does not
// meet it.
func Validate(name string, document []byte) error {
	text, err := files.ReadFile(name + ".json")
	if err != nil {
		return fmt.Errorf("there is no schema %q: %w", name, err)
	}
	var s jsonschema.Schema
	var value any
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("reading the schema %q: %w", name, err)
	}
	if err := json.Unmarshal(document, &value); err != nil {
		return fmt.Errorf("reading a document of the schema %q: %w", name, err)
	}
	schema, err := s.Resolve(nil)
	if err != nil {
		return fmt.Errorf("reading the schema %q: %w", name, err)
	}
	return schema.Validate(value)
}

// Properties are the names of all fields in the schemas.
var Properties = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	err := fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		var document any
		text, err := files.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &document)
		}
		addProperties(names, document)
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("reading the embedded schemas: %v", err))
	}
	return names
})

func addProperties(names map[string]bool, schema any) {
	switch schema := schema.(type) {
	case map[string]any:
		fields, _ := schema["properties"].(map[string]any)
		for name := range fields {
			names[name] = true
		}
		for _, inner := range schema {
			addProperties(names, inner)
		}
	case []any:
		for _, inner := range schema {
			addProperties(names, inner)
		}
	}
}
