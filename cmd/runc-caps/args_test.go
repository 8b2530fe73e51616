package main

import (
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// Two bundles as containerd names them.
const (
	moby = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/15ca97e6cd71"
	ctr  = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/default/rec2"
)

func TestRequestFile(t *testing.T) {
	tests := map[string]struct {
		args string
		path string
		kind requestKind
	}{
		// Recorded between containerd-shim-runc-v2 1.6.20 and runc 1.1.5,
		// with Docker 20.10.24; container IDs shortened.
		"recorded: docker run": {
			args: "--root /var/run/docker/runtime-runc/moby --log " + moby + "/log.json --log-format json create --bundle " + moby + " --pid-file " + moby + "/init.pid 15ca97e6cd71",
			path: moby + "/config.json", kind: bundleFile,
		},
		"recorded: docker run, start": {
			args: "--root /var/run/docker/runtime-runc/moby --log " + moby + "/log.json --log-format json start 15ca97e6cd71",
		},
		"recorded: docker exec": {
			args: "--root /var/run/docker/runtime-runc/moby --log " + moby + "/log.json --log-format json exec --process /tmp/runc-process224597324 --detach --pid-file " + moby + "/4f12a09d4efa.pid 15ca97e6cd71",
			path: "/tmp/runc-process224597324", kind: processFile,
		},
		"recorded: docker rm -f, kill": {
			args: "--root /var/run/docker/runtime-runc/moby --log " + moby + "/log.json --log-format json kill 15ca97e6cd71 9",
		},
		"recorded: docker rm -f, delete": {
			args: "--root /var/run/docker/runtime-runc/moby --log " + moby + "/log.json --log-format json delete --force 15ca97e6cd71",
		},
		"recorded: ctr run": {
			args: "--root /run/containerd/runc/default --log " + ctr + "/log.json --log-format json create --bundle " + ctr + " --pid-file " + ctr + "/init.pid rec2",
			path: ctr + "/config.json", kind: bundleFile,
		},

		"docker info":                        {args: "--version"},
		"no arguments":                       {args: ""},
		"run":                                {args: "run --bundle /b c1", path: "/b/config.json", kind: bundleFile},
		"bundle attached":                    {args: "create --bundle=/b c1", path: "/b/config.json", kind: bundleFile},
		"bundle by its short name":           {args: "create -b /b c1", path: "/b/config.json", kind: bundleFile},
		"bundle behind the container's ID":   {args: "create c1 --pid-file /p --bundle /b", path: "/b/config.json", kind: bundleFile},
		"bundle with one dash":               {args: "create -bundle /b c1", path: "/b/config.json", kind: bundleFile},
		"bundle twice":                       {args: "create --bundle /a --bundle /b c1", path: "/b/config.json", kind: bundleFile},
		"bundle is the working directory":    {args: "run c1", path: "config.json", kind: bundleFile},
		"no bundle behind two dashes":        {args: "create --bundle /b -- --bundle", path: "/b/config.json", kind: bundleFile},
		"a flag's value looks like a bundle": {args: "create --pid-file --bundle c1", path: "config.json", kind: bundleFile},
		"process attached":                   {args: "exec --process=/p c1", path: "/p", kind: processFile},
		"process by its short name":          {args: "exec -d -p /p c1", path: "/p", kind: processFile},
		"process behind other values":        {args: "exec --user 0:0 -e A=b --cwd / -p /p c1", path: "/p", kind: processFile},
		"exec without a process file":        {args: "exec c1 ps"},
		"a flag of the command that runs":    {args: "exec c1 ssh -p /p"},
		"global values attached":             {args: "--root=/r --log=/l create --bundle /b c1", path: "/b/config.json", kind: bundleFile},
		"global switches":                    {args: "--debug --systemd-cgroup create --bundle /b c1", path: "/b/config.json", kind: bundleFile},
		"a global value called create":       {args: "--root create exec -p /p c1", path: "/p", kind: processFile},
		"a container called create":          {args: "state create"},
		"global value cut off":               {args: "--root"},
		"bundle cut off":                     {args: "create c1 --bundle", path: "config.json", kind: bundleFile},
	}
	for name, test := range tests {
		path, kind := requestFile(strings.Fields(test.args))
		must.Equal(t, name+": "+test.args, [2]any{test.path, test.kind}, [2]any{path, kind})
	}
}

func FuzzRequestFile(f *testing.F) {
	f.Add("--root\x00/r\x00create\x00--bundle\x00/b\x00c1")
	f.Add("exec\x00--process=/p\x00c1\x00--\x00-")
	f.Fuzz(func(t *testing.T, line string) {
		path, kind := requestFile(strings.Split(line, "\x00"))
		must.Equal(t, line, path == "", kind == noRequest)
	})
}
