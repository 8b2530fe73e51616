package objects

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/topology/must"
)

const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: peers.example.net}
spec:
  group: example.net
  names: {kind: Peer}
  versions:
  - {name: v0, served: false, schema: {openAPIV3Schema: {type: object}}}
  - name: v1
    served: true
    schema:
      openAPIV3Schema:
        type: object
        required: [metadata, spec]
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            required: [addresses, ttl]
            properties:
              addresses: {type: array, items: {type: string, pattern: '^[0-9./]+$'}}
              ttl: {type: integer, minimum: 1, maximum: 255, default: 1}
              mode: {type: string, enum: [active, passive]}
              port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
              labels: {type: object, additionalProperties: {type: string}}
              raw: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// What an API server drops or refuses is said, and what it drops is removed.
func TestPrune(t *testing.T) {
	defined := must.Get(Read(crd))(t)
	types := TypesOf([]unstructured.Unstructured{*defined[0]})
	must.Equal(t, "served", []string{"example.net/v1"}, types.Served(must.Get(Read("{apiVersion: example.net/v7, kind: Peer}"))(t)[0]))
	for _, test := range []struct{ name, spec, unknown, refused string }{
		{"as it should be", "spec: {addresses: [192.0.2.1], ttl: 3, mode: active, port: http, labels: {a: b}, raw: {x: {y: 1}}}", "", ""},
		{"misspelt", "spec: {adresses: [192.0.2.1]}", "spec.adresses (nearest is addresses)", "spec.addresses: it is missing"},
		{"other letters", "spec: {addresses: [192.0.2.1], TTL: 4, bandwidth: {}}", "spec.TTL; spec.bandwidth", ""},
		{"beside the spec", "spec: {addresses: [192.0.2.1]}\nmode: passive", "mode", ""},
		{"out of range", "spec: {addresses: [192.0.2.1], ttl: 0}", "", "spec.ttl: 0: expected 1 or more"},
		{"another type", "spec: {addresses: 192.0.2.1, ttl: '5', labels: {a: 1}}", "", "spec.addresses: expected array; spec.labels.a: expected string; spec.ttl: expected integer"},
		{"no such choice", "spec: {addresses: [all], mode: idle}", "", `spec.addresses[0]: it does not match its pattern; spec.mode: idle: expected one of [active passive]`},
		{"variables", "spec: {addresses: ['${CIDR}'], ttl: '$TTL'}", "", ""},
		{"no spec", "status: {}", "", "spec: it is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := must.Get(Read("apiVersion: example.net/v1\nkind: Peer\nmetadata: {name: p, uid: x}\n" + test.spec))(t)[0]
			said := types.Prune(o)
			must.Equal(t, "unknown", test.unknown, strings.Join(said.Unknown, "; "))
			must.Equal(t, "refused", test.refused, strings.Join(said.Refused, "; "))
			if again := types.Prune(o); len(again.Unknown) > 0 || o.GetName() != "p" || o.GetUID() != "" {
				t.Errorf("left are %v in %v", again.Unknown, o.Object)
			}
		})
	}
}

// Calico's BGPPeer is none of MetalLB's.
func TestPruneOfAnotherGroup(t *testing.T) {
	types := TypesOf([]unstructured.Unstructured{*must.Get(Read(crd))(t)[0]})
	o := must.Get(Read("{apiVersion: crd.projectcalico.org/v1, kind: Peer, metadata: {name: p}, spec: {peerIP: 192.0.2.1}}"))(t)[0]
	said := types.Prune(o)
	must.Equal(t, said, 0, len(said.Unknown)+len(said.Refused)+len(types.Served(o)))
}

func TestLabelsFor(t *testing.T) {
	for _, test := range []struct{ selector, with, want string }{
		{"{}", "{}", "map[]"},
		{"{matchLabels: {a: b}}", "{c: d}", "map[a:b c:d]"},
		{"{matchLabels: {a: b}}", "{a: c}", ""},
		{"{matchExpressions: [{key: a, operator: In, values: [x, z]}, {key: e, operator: Exists}]}", "{a: z}", "map[a:z e:lab]"},
		{"{matchExpressions: [{key: a, operator: NotIn, values: [never]}, {key: b, operator: DoesNotExist}]}", "{}", "map[]"},
		{"{matchExpressions: [{key: b, operator: DoesNotExist}], matchLabels: {b: c}}", "{}", ""},
		{"none", "{}", ""},
	} {
		o := must.Get(Read(fmt.Sprintf("kind: X\nselector: %s\nwith: %s\n", test.selector, test.with)))(t)[0]
		with, _, _ := unstructured.NestedStringMap(o.Object, "with")
		labels, ok := LabelsFor(Selector(o.Object["selector"]), with)
		if got := fmt.Sprint(labels); ok != (test.want != "") || ok && got != test.want {
			t.Errorf("%s with %s: %s, %t, want %s", test.selector, test.with, got, ok, test.want)
		}
	}
}
