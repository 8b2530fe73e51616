// Package placeholder finds variables in the YAML that people keep, and puts values in their place: ${NAME} and
// ${NAME:=default} of Flux, {{ NAME }}, #{ NAME }#, $(NAME) and $NAME.
package placeholder

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/each"
)

// pattern finds variables. The last form, $NAME, is a variable only if it is a whole value.
var pattern = regexp.MustCompile(`(?:\{\{-?|#\{)\s*([^{}]*?)\s*(?:-?\}\}|\}#)` +
	`|\$\{([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}` +
	`|\$\(([A-Za-z_]\w*)\)` +
	`|(?m:^[-\s]*(?:[\w./-]+:[ \t]+)?["']?)(\$([A-Za-z_]\w*))(?m:["']?[ \t\r]*$)`)

// block finds what a template has besides variables: its text is no YAML or, with #%, has all branches of a condition.
var block = regexp.MustCompile(`\{%.*|#%.*%#|\{\{-?\s*(?:if|else|end|range|with|define|include|template|block)\b.*`)

// found is a variable in a text: where it is, its name, and its default.
type found struct {
	start, end int
	name       string
	fallback   *string
}

func find(text string) []found {
	var all []found
	for _, at := range pattern.FindAllStringSubmatchIndex(text, -1) {
		group := func(n int) string {
			if at[2*n] < 0 {
				return ""
			}
			return text[at[2*n]:at[2*n+1]]
		}
		f := found{start: at[0], end: at[1], name: group(1) + group(2) + group(4) + group(6)}
		if at[6] >= 0 {
			f.fallback = new(group(3))
		}
		if at[10] >= 0 {
			f.start, f.end = at[10], at[11]
		}
		if f.name != "" && (f.start == 0 || text[f.start-1] != '$') {
			all = append(all, f)
		}
	}
	return all
}

// Values are the values of variables, by name.
type Values map[string]string

// Parse reads values of variables: pairs such as NAME=VALUE, which take precedence over a file with a ConfigMap, a
// Kustomization of Flux, a map, or a pair on each line. The error is one sentence without the file's name.
func Parse(pairs []string, file []byte) (Values, error) {
	all := Values{}
	var parsed map[string]any
	if err := yaml.Unmarshal(file, &parsed); err == nil {
		substitutes, _ := parsed["spec"].(map[string]any)
		substitutes, _ = substitutes["postBuild"].(map[string]any)
		for _, inner := range []any{parsed["data"], substitutes["substitute"]} {
			if inner, ok := inner.(map[string]any); ok && parsed["kind"] != nil {
				parsed = inner
			}
		}
		for name, value := range parsed {
			switch value.(type) {
			case map[string]any, []any:
				return nil, fmt.Errorf("%s has no single value: expected a ConfigMap, a map of single values, or a line NAME=VALUE for each variable",
					name)
			}
			all[name] = fmt.Sprint(value)
		}
		file = nil
	}
	for number, line := range strings.Split(string(file), "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("line %d: expected NAME=VALUE", number+1)
		}
		if q := strings.TrimSpace(value); len(q) > 1 && (q[0] == '"' || q[0] == '\'') && q[len(q)-1] == q[0] {
			value = q[1 : len(q)-1]
		}
		all[strings.TrimSpace(name)] = value
	}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, errors.New("expected NAME=VALUE")
		}
		all[name] = value
	}
	return all, nil
}

// Map parses a YAML document that is a map, with values in place of its variables. A variable without a value stays in
// the strings as it is written.
func (v Values) Map(text []byte) (map[string]any, error) {
	marked, marks := v.fill(string(text))
	var document any
	err := yaml.Unmarshal([]byte(marked), &document)
	if at := block.FindIndex(text); at != nil && (err != nil || text[at[0]] == '#') {
		return nil, fmt.Errorf("line %d belongs to a template: expected what is made of it", 1+bytes.Count(text[:at[0]], []byte("\n")))
	}
	if err != nil {
		return nil, fmt.Errorf("it is not YAML: %s", OneLine(err))
	}
	document = restore(document, marks)
	restored, ok := document.(map[string]any)
	if !ok && document != nil {
		return nil, cmp.Or(Missing(In(document)), errors.New("it is not a map of values"))
	}
	return restored, nil
}

// OneLine is a YAML parser's error on one line.
func OneLine(err error) string {
	return strings.Join(strings.Fields(strings.NewReplacer("error converting YAML to JSON: ", "", "yaml: ", "").Replace(err.Error())), " ")
}

// Documents parses the YAML documents of a stream, each a map, and the items of a List in it.
func (v Values) Documents(stream []byte) ([]map[string]any, error) {
	var all []map[string]any
	reader := apiyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for number := 1; ; number++ {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		var d map[string]any
		if err == nil {
			d, err = v.Map(text)
		}
		switch {
		case err != nil && number == 1 && len(bytes.TrimSpace(text)) == len(bytes.TrimSpace(stream)):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", number, err)
		case len(d) == 0:
			continue
		}
		kind, _ := d["kind"].(string)
		items, ok := d["items"].([]any)
		if !ok || !strings.HasSuffix(kind, "List") {
			items = []any{d}
		}
		all = append(all, each.As[map[string]any](items)...)
	}
}

// Stream is a stream of YAML documents with values in place of variables.
func (v Values) Stream(stream []byte) (string, error) {
	documents, err := v.Documents(stream)
	var all []string
	for _, d := range documents {
		text, err := yaml.Marshal(d)
		if err != nil {
			return "", err
		}
		all = append(all, string(text))
	}
	return strings.Join(all, "---\n"), err
}

// fill puts values in place of variables, and marks in place of variables without a value: {{ NAME }} and, between
// brackets, ${NAME} are no strings of YAML.
func (v Values) fill(text string) (string, []string) {
	var out strings.Builder
	var marks []string
	last := 0
	for _, f := range find(text) {
		out.WriteString(text[last:f.start])
		last = f.end
		switch value, given := v[f.name]; {
		case given:
			out.WriteString(value)
		case f.fallback != nil:
			out.WriteString(*f.fallback)
		default:
			fmt.Fprintf(&out, "relapse0%d0variable", len(marks))
			marks = append(marks, text[f.start:f.end])
		}
	}
	out.WriteString(text[last:])
	return strings.ReplaceAll(out.String(), "$${", "${"), marks
}

var mark = regexp.MustCompile(`relapse0(\d+)0variable`)

// restore puts the variables back in place of their marks.
func restore(value any, marks []string) any {
	text := func(s string) string {
		return mark.ReplaceAllStringFunc(s, func(m string) string {
			n, err := strconv.Atoi(mark.FindStringSubmatch(m)[1])
			if err != nil || n >= len(marks) {
				return m
			}
			return marks[n]
		})
	}
	switch value := value.(type) {
	case string:
		return text(value)
	case []any:
		for i := range value {
			value[i] = restore(value[i], marks)
		}
	case map[string]any:
		for _, key := range slices.Collect(maps.Keys(value)) {
			inner := restore(value[key], marks)
			delete(value, key)
			value[text(key)] = inner
		}
	}
	return value
}

// Variable is a variable without a value.
type Variable struct {
	Name string
	Text string // as it is written, such as ${NAME}
	// Path is where it is: a key for each map, up to a list or a string.
	Path []string
}

const encrypted = "encrypted by SOPS"

// In are the variables of a parsed document, in order of their paths.
func In(value any) []Variable { return within(value, nil) }

func within(value any, path []string) []Variable {
	var all []Variable
	switch value := value.(type) {
	case string:
		if strings.HasPrefix(value, "ENC[AES256_GCM,") {
			return []Variable{{encrypted, value, path}}
		}
		for _, f := range find(value) {
			if f.fallback == nil {
				all = append(all, Variable{f.name, value[f.start:f.end], path})
			}
		}
	case []any:
		for _, item := range value {
			for _, v := range within(item, nil) {
				v.Path = path // a list is one value
				all = append(all, v)
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			at := append(slices.Clone(path), key)
			for _, f := range find(key) {
				all = append(all, Variable{f.name, key[f.start:f.end], at})
			}
			all = append(all, within(value[key], at)...)
		}
	}
	return all
}

// Missing is the error that names variables without a value, and says how to give them; nil if there are none.
func Missing(all []Variable) error {
	var names, places []string
	for _, v := range all {
		if v.Name == encrypted {
			return fmt.Errorf("SOPS has encrypted %s: expected what sops --decrypt prints", strings.Join(v.Path, "."))
		}
		if !slices.Contains(names, v.Name) {
			names = append(names, v.Name)
			places = append(places, strings.TrimSuffix(fmt.Sprintf("%s (%s)", v.Name, strings.Join(v.Path, ".")), " ()"))
		}
	}
	if len(names) == 0 {
		return nil
	}
	name := names[0]
	if strings.ContainsFunc(name, func(r rune) bool { return strings.ContainsRune(" \"|()", r) }) {
		name = "'" + name + "'"
	}
	return fmt.Errorf("no value is given for the variables %s: expected --set-var %s=VALUE for each, or --vars FILE with "+
		"a ConfigMap or lines NAME=VALUE",
		strings.Join(places, ", "), name)
}
