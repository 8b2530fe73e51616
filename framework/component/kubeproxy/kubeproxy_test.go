package kubeproxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestHang(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(second, syncs int, waiting ...int) State {
		return State{At: start.Add(time.Duration(second) * time.Second), Mode: IPVS, Syncs: syncs, Waiting: waiting}
	}
	long := int(FrozenFor / time.Second)
	for _, c := range []struct {
		name  string
		polls []State
		hangs bool // at the last poll, and at none before
	}{
		{"one poll", []State{at(0, 5, 1, 31)}, false},
		{"two goroutines wait for each other", []State{at(0, 5), at(2, 5, 1, 31), at(4, 5, 1, 31), at(6, 5, 1, 31)}, true},
		{"not for long yet", []State{at(0, 5, 1, 31), at(2, 5, 1, 31)}, false},
		{"one waits", []State{at(0, 5, 1), at(2, 5, 1), at(4, 5, 1), at(6, 5, 1)}, false},
		{"others at each poll", []State{at(0, 5, 1, 31), at(2, 5, 1, 32), at(4, 5, 1, 31), at(6, 5, 1, 32)}, false},
		{"one of them comes through", []State{at(0, 5, 1, 31), at(2, 5, 1, 31), at(4, 5, 31), at(6, 5, 1, 31)}, false},
		{"a sync is finished in between", []State{at(0, 5, 1, 31), at(2, 5, 1, 31), at(4, 6, 1, 31), at(6, 6, 1, 31)}, false},
		{"slow syncs", []State{at(0, 5), at(40, 6), at(80, 7), at(120, 8), at(160, 9)}, false},
		{"a slow sync", []State{at(0, 5), at(long-1, 5)}, false},
		{"no sync for too long", []State{at(0, 5), at(10, 6), at(9+long, 6), at(10+long, 6)}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h Hang
			for i, l := range c.polls {
				last := i == len(c.polls)-1
				must.Equal(t, i, (last && c.hangs), h.See(l))
			}
		})
	}
}

// An answer with a part missing is an error: where the metrics are missing, the count of syncs is unknown and not zero.
func TestStateOf(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	full := snapshot.Proxy{
		Mode: "ipvs", Dumped: true, Goroutines: []snapshot.Goroutine{{ID: 1}}, Counters: map[string]float64{syncMetric: 17}, LogLines: 512,
	}
	for _, c := range []struct {
		name   string
		change func(*snapshot.Proxy)
		want   State
		err    string
	}{
		{"all of it", func(*snapshot.Proxy) {}, State{at, IPVS, 17, []int{1}, 512}, ""},
		{"no sync yet", func(p *snapshot.Proxy) { p.Counters = map[string]float64{} }, State{at, IPVS, 0, []int{1}, 512}, ""},
		{"no mode", func(p *snapshot.Proxy) { p.Mode = "" }, State{}, "for its mode"},
		{"no metrics", func(p *snapshot.Proxy) { p.Counters = nil }, State{}, "for its metrics"},
		{"no profiling", func(p *snapshot.Proxy) { p.Dumped = false }, State{}, "--profiling"},
	} {
		t.Run(c.name, func(t *testing.T) {
			said := full
			c.change(&said)
			got, err := stateOf(said, at)
			must.Equal(t, "", c.want, got)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
		})
	}
}

// The script asks a server that answers as kube-proxy does.
func TestStateScript(t *testing.T) {
	mux := http.NewServeMux()
	for path, body := range map[string]string{
		"/proxyMode": string(IPVS), "/metrics": "# HELP x\n" + syncMetric + "_other 3\n" + syncMetric + " 17\n",
		"/debug/pprof/goroutine": "goroutine 1 [running]:\nmain.main()\n",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must.NoError(t, err)
	watched := netip.MustParseAddr("10.96.0.100")
	pods := t.TempDir()
	for i, name := range []string{"new", "old"} {
		dir := filepath.Join(pods, "kube-system_kube-proxy-"+name, "kube-proxy")
		must.NoError(t, os.MkdirAll(dir, 0o755))
		file, entry := filepath.Join(dir, "0.log"), "Trying to delete rs: "+watched.String()+":80/TCP\n"
		must.Write(t, file, strings.Repeat(entry, 3+i))
		written := time.Now().Add(-time.Duration(i) * time.Minute)
		must.NoError(t, os.Chtimes(file, written, written))
	}
	read := func(at time.Time) (State, error) {
		said, err := Proxy{Watched: watched}.query().Ask(t.Context(), onThisMachine{strings.NewReplacer("10249", port, "/var/log/pods", pods)})
		if err != nil {
			return State{}, err
		}
		return stateOf(said, at)
	}
	at := time.Now()
	got, err := read(at)
	if diff := cmp.Diff(State{at, IPVS, 17, nil, 3}, got); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	server.Close()
	if got, err := read(at); err == nil {
		t.Errorf("no kube-proxy, and no error: %v", got)
	}
}

type onThisMachine struct{ here *strings.Replacer }

func (m onThisMachine) Exec(ctx context.Context, command ...string) (string, error) {
	script := m.here.Replace(command[len(command)-1])
	out, err := exec.CommandContext(ctx, "bash", "-c", script).Output()
	return string(out), err
}
