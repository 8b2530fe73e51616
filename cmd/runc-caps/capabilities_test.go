package main

import (
	"encoding/json"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestWithout(t *testing.T) {
	tests := map[string]struct {
		kind    requestKind
		request string
		want    string // empty: unchanged
	}{
		"bundle, all five sets": {
			kind: bundleFile,
			request: `{"ociVersion":"1.0.2-dev","process":{"terminal":true,"capabilities":{
				"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"],
				"effective":["CAP_SYS_RESOURCE","CAP_CHOWN"],
				"inheritable":["CAP_SYS_RESOURCE"],
				"permitted":["CAP_CHOWN","CAP_SYS_RESOURCE","CAP_KILL"],
				"ambient":["CAP_SYS_RESOURCE"]}}}`,
			want: `{"ociVersion":"1.0.2-dev","process":{"terminal":true,"capabilities":{
				"bounding":["CAP_CHOWN"],"effective":["CAP_CHOWN"],"inheritable":[],
				"permitted":["CAP_CHOWN","CAP_KILL"],"ambient":[]}}}`,
		},
		"process": {
			kind:    processFile,
			request: `{"user":{"uid":0,"gid":0},"args":["id"],"capabilities":{"bounding":["CAP_SYS_RESOURCE","CAP_KILL"]},"oomScoreAdj":0}`,
			want:    `{"user":{"uid":0,"gid":0},"args":["id"],"capabilities":{"bounding":["CAP_KILL"]},"oomScoreAdj":0}`,
		},
		"unknown keys are kept": {
			kind:    bundleFile,
			request: `{"x-new":{"a":[1,2.50,18446744073709551615]},"process":{"args":["sh","-c","a<b && c>d"],"capabilities":{"bounding":["CAP_SYS_RESOURCE"],"x-set":["CAP_KILL"]},"x":null}}`,
			want:    `{"x-new":{"a":[1,2.50,18446744073709551615]},"process":{"args":["sh","-c","a<b && c>d"],"capabilities":{"bounding":[],"x-set":["CAP_KILL"]},"x":null}}`,
		},
		"nothing of it asked for": {kind: bundleFile, request: `{"process":{"capabilities":{"bounding":["CAP_KILL"]}}}`},
		"no capabilities":         {kind: bundleFile, request: `{"process":{"args":["sh"]}}`},
		"capabilities null":       {kind: processFile, request: `{"capabilities":null}`},
		"a set null":              {kind: processFile, request: `{"capabilities":{"ambient":null}}`},
		"no process":              {kind: bundleFile, request: `{"ociVersion":"1.0.2"}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, changed, err := without([]string{"CAP_SYS_RESOURCE"}, []byte(test.request), test.kind)
			must.NoError(t, err)
			must.Equal(t, "changed", (test.want != ""), changed)
			if !changed {
				test.want = test.request
			}
			must.Equal(t, "request", canonical(t, test.want), canonical(t, string(got)))
		})
	}
}

func TestWithoutRefuses(t *testing.T) {
	tests := map[string]string{
		"no JSON":                `process: {}`,
		"cut off":                `{"process":{"capabilities":{"bounding":["CAP_KILL"`,
		"process is a list":      `{"process":[]}`,
		"a set is not a list":    `{"process":{"capabilities":{"bounding":"ALL"}}}`,
		"capabilities is a list": `{"process":{"capabilities":["CAP_KILL"]}}`,
	}
	for name, request := range tests {
		_, _, err := without([]string{"CAP_SYS_RESOURCE"}, []byte(request), bundleFile)
		must.Equal(t, name+" is refused", true, err != nil)
	}
}

// canonical is text with its keys in order, its spaces gone, and its numbers and strings as they stand.
func canonical(t *testing.T, text string) string {
	t.Helper()
	var walk func(raw json.RawMessage) any
	walk = func(raw json.RawMessage) any {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil || object == nil {
			return raw
		}
		walked := map[string]any{}
		for key, member := range object {
			walked[key] = walk(member)
		}
		return walked
	}
	return string(must.Get(marshal(walk(json.RawMessage(text))))(t))
}
