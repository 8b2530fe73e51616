package main

import (
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// moby is a bundle as containerd names it.
const moby = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/15ca97e6cd71"

// Recorded between containerd-shim-runc-v2 1.6.20 and runc 1.1.5, with Docker 20.10.24;
// container IDs shortened.
func TestRequestFile(t *testing.T) {
	const global = "--root /var/run/docker/runtime-runc/moby --log " + moby + "/log.json --log-format json "
	for args, want := range map[string]string{
		global + "create --bundle " + moby + " --pid-file " + moby + "/init.pid 15ca97e6cd71":                               moby + "/config.json",
		global + "exec --process /tmp/runc-process224597324 --detach --pid-file " + moby + "/4f12a09d4efa.pid 15ca97e6cd71": "/tmp/runc-process224597324",
		global + "start 15ca97e6cd71":          "",
		global + "kill 15ca97e6cd71 9":         "",
		global + "delete --force 15ca97e6cd71": "",
		"--version":                            "",
		"create c1 --bundle":                   "",
		"":                                     "",
	} {
		must.Equal(t, args, want, requestFile(strings.Fields(args)))
	}
}

func TestWithout(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		want    string // empty: unchanged
	}{
		"bundle, all five sets": {
			`{"ociVersion":"1.0.2-dev","process":{"terminal":true,"capabilities":{
				"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"],
				"effective":["CAP_SYS_RESOURCE","CAP_CHOWN"],
				"inheritable":["CAP_SYS_RESOURCE"],
				"permitted":["CAP_CHOWN","CAP_SYS_RESOURCE","CAP_KILL"],
				"ambient":["CAP_SYS_RESOURCE"]}}}`,
			`{"ociVersion":"1.0.2-dev","process":{"capabilities":{"ambient":[],"bounding":["CAP_CHOWN"],"effective":["CAP_CHOWN"],` +
				`"inheritable":[],"permitted":["CAP_CHOWN","CAP_KILL"]},"terminal":true}}`,
		},
		"process": {
			`{"user":{"uid":0,"gid":0},"args":["id"],"capabilities":{"bounding":["CAP_SYS_RESOURCE","CAP_KILL"]},"oomScoreAdj":0}`,
			`{"args":["id"],"capabilities":{"bounding":["CAP_KILL"]},"oomScoreAdj":0,"user":{"uid":0,"gid":0}}`,
		},
		"what it does not know": {
			`{"x-new":{"a":[1,2.50,18446744073709551615]},"process":{"args":["sh","-c","a<b"],"capabilities":{"bounding":["CAP_SYS_RESOURCE"]},"x":null}}`,
			`{"process":{"args":["sh","-c","a\u003cb"],"capabilities":{"bounding":[]},"x":null},"x-new":{"a":[1,2.50,18446744073709551615]}}`,
		},
		"nothing of it asked for": {`{"process":{"capabilities":{"bounding":["CAP_KILL"]}}}`, ""},
		"no capabilities":         {`{"process":{"args":["sh"]}}`, ""},
		"capabilities null":       {`{"capabilities":null}`, ""},
		"no process":              {`{"ociVersion":"1.0.2"}`, ""},
	} {
		got, err := without([]string{"CAP_SYS_RESOURCE"}, []byte(test.request))
		must.NoError(t, err)
		must.Equal(t, name, test.want, string(got))
	}
	for _, request := range []string{
		`process: {}`, `{"process":{"capabilities":{"bounding":["CAP_KILL"`, `{"process":[]}`,
		`{"process":{"capabilities":{"bounding":"ALL"}}}`, `{"process":{"capabilities":["CAP_KILL"]}}`,
	} {
		if got, err := without([]string{"CAP_SYS_RESOURCE"}, []byte(request)); err == nil {
			t.Errorf("without(%s) = %s, want an error", request, got)
		}
	}
}
