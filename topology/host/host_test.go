package host

import (
	"errors"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

var mixed = Report{Checks: []Check{
	{Name: "root", State: Fatal, Found: "uid 1000", Want: "relapse must run as root", Cure: "run it with sudo"},
	{Name: "CPUs", State: OK, Found: "2"},
	{Name: "Docker engine", State: Curable, Found: "no Docker is installed", Want: "Docker must answer", Cure: "apt-get install docker.io"},
}}

func TestReportErr(t *testing.T) {
	unfit, ok := errors.AsType[*UnfitError](mixed.Err())
	if !ok {
		t.Fatalf("Err() = %v, want an *UnfitError", mixed.Err())
	}
	want := "relapse must run as root (found: uid 1000): run it with sudo\n" +
		"Docker must answer (found: no Docker is installed): apt-get install docker.io"
	must.Equal(t, "error", want, unfit.Error())
	must.NoError(t, Report{Checks: mixed.Checks[1:2]}.Err()) // of a fit machine
}

func TestReportWrite(t *testing.T) {
	var out strings.Builder
	must.NoError(t, mixed.Write(&out))
	want := `fatal    root           uid 1000
                        wanted: relapse must run as root
                        cure: run it with sudo
ok       CPUs           2
curable  Docker engine  no Docker is installed
                        wanted: Docker must answer
                        cure: apt-get install docker.io
`
	must.Equal(t, "table", want, out.String())
}

func TestMissingPackages(t *testing.T) {
	down := errors.New("no such file")
	for name, test := range map[string]struct {
		observed observed
		want     []string
	}{
		"nothing": {observed: observed{engine: engine{command: true}}},
		"a fresh Debian 12": {observed: observed{needs: Needs{Packages: []string{"debootstrap"}}, engine: engine{err: down}},
			want: []string{"debootstrap", "docker.io"}},
		"a fresh Debian 13": {observed: observed{needs: Needs{Packages: []string{"debootstrap"}}, engine: engine{err: down, split: true}},
			want: []string{"debootstrap", "docker.io", "docker-cli"}},
		"Docker only stopped":                      {observed: observed{engine: engine{err: down, installed: true, command: true}}},
		"Docker of Debian 13, without a command":   {observed: observed{engine: engine{installed: true, split: true}}, want: []string{"docker-cli"}},
		"the same without apt's lists":             {observed: observed{engine: engine{installed: true}}, want: []string{"docker-cli"}},
		"another's engine, no command, Debian 12":  {observed: observed{engine: engine{}}, want: []string{"docker.io"}},
		"another's engine, no command, Debian 13":  {observed: observed{engine: engine{split: true}}, want: []string{"docker-cli"}},
		"the docker command without Docker itself": {observed: observed{engine: engine{err: down, command: true}}, want: []string{"docker.io"}},
	} {
		t.Run(name, func(t *testing.T) { must.Equal(t, "missing", test.want, test.observed.missingPackages()) })
	}
}
