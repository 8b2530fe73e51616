package placeholder

import (
	"fmt"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestMap(t *testing.T) {
	given := Values{"ID": "7", "name": "prod", ".cluster.cidr": "10.0.0.0/8"}
	for _, test := range []struct{ name, text, want string }{
		{"a value of its own type", "id: ${ID}", "map[id:7]"},
		{"in a string", "url: https://${name}.example.com:${PORT:=6443}", "map[url:https://prod.example.com:6443]"},
		{"a default", "{a: '${X:-}', b: ${Y:=d}}", "map[a: b:d]"},
		{"of templates", "a: {{ .cluster.cidr }}\nb: '#{ name }#'\nc: $(name)\nd: [ $name ]\ne: $name", "map[a:10.0.0.0/8 b:prod c:prod d:[$name] e:prod]"},
		{"without a value", "a: {{ other }}\nb: [${other}]\n${key}: $(x)-{{y}}", "map[${key}:$(x)-{{y}} a:{{ other }} b:[${other}]]"},
		{"no variable", "a: $1.${1} $${name} pa$$word", "map[a:$1.${1} ${name} pa$$word]"},
		{"conditions in a string", "a: 'x {{ if .Y }}'", "map[a:x {{ if .Y }}]"},
		{"an integer", "a: 65535", "map[a:65535]"},
		{"conditions", "a: 1\n{{- if .Values.x }}\nb: 2\n{{- end }}", "line 2 belongs to a template: expected what is made of it"},
		{"conditions in comments", "a: 1\n#% if x %#\na: 2\n#% endif %#", "line 2 belongs to a template: expected what is made of it"},
		{"no YAML", "a: {b: 1\nc", "it is not YAML: line 2: did not find expected ',' or '}'"},
		{"a list", "- a", "it is not a map of values"},
		{"a variable alone", "${values}", "no value is given for the variables values: expected --set-var values=VALUE for each, or --vars FILE with a ConfigMap or lines NAME=VALUE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			parsed, err := given.Map([]byte(test.text))
			got := fmt.Sprint(parsed)
			if err != nil {
				got = err.Error()
			}
			must.Equal(t, "", test.want, got)
		})
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct{ name, file, want string }{
		{"lines", "# ours\nexport A=1\nB=\"x y\"\n\nC=a=b\n", "map[A:1 B:x y C:a=b NEW:set]"},
		{"a ConfigMap", "kind: ConfigMap\ndata: {A: '1'}\n", "map[A:1 NEW:set]"},
		{"of Flux", "kind: Kustomization\nspec: {postBuild: {substitute: {A: b}}}\n", "map[A:b NEW:set]"},
		{"a map, and a pair for one of it", "A: 1\nNEW: old\n", "map[A:1 NEW:set]"},
		{"no pair", "A=1\nB\n", `line 2: expected NAME=VALUE`},
		{"an object", "kind: Secret\nmetadata: {name: x}\n", "metadata has no single value: expected a ConfigMap, a map of single values, or a line NAME=VALUE for each variable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			values, err := Parse([]string{"NEW=set"}, []byte(test.file))
			got := fmt.Sprint(values)
			if err != nil {
				got = err.Error()
			}
			must.Equal(t, "", test.want, got)
		})
	}
}

func TestMissing(t *testing.T) {
	parsed := must.Get(Values{}.Map([]byte("{a: {b: '${X}', c: ['${Y} {{ z }}', '${X}']}, d: '${W:=1}', e: $V}")))(t)
	const want = "no value is given for the variables X (a.b), Y (a.c), z (a.c), V (e): " +
		"expected --set-var X=VALUE for each, or --vars FILE with a ConfigMap or lines NAME=VALUE"
	must.Equal(t, "", want, fmt.Sprint(Missing(In(parsed))))
	sealed := In(map[string]any{"bgp": map[string]any{"password": "ENC[AES256_GCM,data:x,iv:y,type:str]"}})
	must.Equal(t, "", "SOPS has encrypted bgp.password: expected what sops --decrypt prints", fmt.Sprint(Missing(sealed)))
	must.NoError(t, Missing(nil))
	want2 := []Variable{{"k", "${k}", []string{"${k}"}}}
	must.Equal(t, "", want2, In(map[string]any{"${k}": true}))
}
