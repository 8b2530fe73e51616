package ipvsdeadlock

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework"
)

func TestTopology(t *testing.T) {
	if err := lab.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, p := range podRanges {
		if !podCIDR.Overlaps(p) {
			t.Errorf("the range %s of %s is not in %s", p, name, podCIDR)
		}
	}
}

func TestVariantsArePairs(t *testing.T) {
	roles := map[framework.Role]int{}
	for _, v := range Scenario.Variants {
		roles[v.Role]++
		for _, image := range v.Images {
			if strings.Contains(image, "kube-proxy") && image == "k8s.gcr.io/kube-proxy:v" {
				t.Errorf("%s serves %q", v.Name, image)
			}
		}
	}
	if roles[framework.Affected] != 1 || roles[framework.Fixed] != 1 || roles[framework.Workaround] != 1 {
		t.Errorf("roles: %v", roles)
	}
}

func TestEndpoints(t *testing.T) {
	all := busyEndpoints()
	seen := map[string]bool{}
	for _, a := range all {
		if !busyRange.Contains(a) {
			t.Errorf("%s is not in %s", a, busyRange)
		}
		seen[a.String()] = true
	}
	if len(seen) != endpointsOfBusy || connections < endpointsOfBusy {
		t.Errorf("%d different endpoints, %d connections", len(seen), connections)
	}
	if e := endpointsOf("busy", all...); len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != endpointsOfBusy {
		t.Errorf("endpoints: %+v", e)
	}
	// An empty subset would be refused.
	if e := endpointsOf("busy"); len(e.Subsets) != 0 {
		t.Errorf("no endpoints: %+v", e)
	}
}

// A load under which 1.13.0 might not have hung proves nothing.
func TestHeld(t *testing.T) {
	good := standing{
		mode: ipvs, walked: 2 * endpointsOfBusy, took: period, met: true, metSyncs: syncsMet, metChanges: churned,
		connections: connections, endpoints: endpointsOfBusy,
	}
	with := func(change func(*standing)) standing {
		s := good
		change(&s)
		return s
	}
	for _, c := range []struct {
		name  string
		proxy kubeProxy
		after standing
		saw   string // empty: it held
	}{
		{"it stood the load", kubeProxy{fixed, ipvs}, good, ""},
		{
			"it hung while the endpoints went onto the list", kubeProxy{affected, ipvs},
			with(func(s *standing) { s.walked, s.metSyncs, s.metChanges, s.hung = 202, 0, 0, true }), "",
		},
		{
			"iptables, whose connections go by chance", kubeProxy{affected, iptables},
			with(func(s *standing) { s.mode, s.walked, s.endpoints = iptables, 0, 170 }), "",
		},
		{
			"iptables, not for long", kubeProxy{affected, iptables},
			with(func(s *standing) { s.mode, s.walked, s.took = iptables, 0, period/2 }),
			"no tick walked the list while syncs went on: the log tells of 0 entries, 2 syncs were finished since it began",
		},
		{"no load", kubeProxy{affected, ipvs}, standing{}, "there was no load"},
		{
			"it fell back to iptables", kubeProxy{affected, ipvs}, with(func(s *standing) { s.mode = iptables }),
			`kube-proxy runs in mode "iptables", not "ipvs"`,
		},
		{"the load broke", kubeProxy{affected, ipvs}, with(func(s *standing) { s.load = errors.New("killed") }), "the load ended early: killed"},
		{
			"the churn stopped", kubeProxy{affected, ipvs}, with(func(s *standing) { s.metChanges = churned - 1 }),
			"the churn stopped: 59 changes since the tick began",
		},
		{
			"connections were closed", kubeProxy{affected, ipvs}, with(func(s *standing) { s.connections = 12 }),
			fmt.Sprintf("12 connections to %d endpoints were left", endpointsOfBusy),
		},
		{
			"the tick did not walk the whole list", kubeProxy{affected, ipvs}, with(func(s *standing) { s.walked-- }),
			"no tick walked the list while syncs went on: the log tells of 499 entries, 2 syncs were finished since it began",
		},
		{
			"no sync met the tick", kubeProxy{affected, ipvs}, with(func(s *standing) { s.metSyncs = 1 }),
			"no tick walked the list while syncs went on: the log tells of 500 entries, 1 syncs were finished since it began",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{proxy: c.proxy, ticks: ticks, after: c.after}
			held, saw, err := s.held(t.Context(), nil)
			if err != nil || held != (c.saw == "") || saw != c.saw {
				t.Errorf("held %v, saw %q, %v; want %q", held, saw, err, c.saw)
			}
		})
	}
}

func TestHang(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(second, syncs int, waiting ...int) look {
		return look{at: start.Add(time.Duration(second) * time.Second), mode: ipvs, syncs: syncs, waiting: waiting}
	}
	long := int(frozenFor / time.Second)
	for _, c := range []struct {
		name  string
		looks []look
		hangs bool // at the last one, and at none before
	}{
		{"one look", []look{at(0, 5, 1, 31)}, false},
		{"two goroutines wait for each other", []look{at(0, 5), at(2, 5, 1, 31), at(4, 5, 1, 31), at(6, 5, 1, 31)}, true},
		{"not for long yet", []look{at(0, 5, 1, 31), at(2, 5, 1, 31)}, false},
		{"one waits", []look{at(0, 5, 1), at(2, 5, 1), at(4, 5, 1), at(6, 5, 1)}, false},
		{"others at each look", []look{at(0, 5, 1, 31), at(2, 5, 1, 32), at(4, 5, 1, 31), at(6, 5, 1, 32)}, false},
		{"one of them comes through", []look{at(0, 5, 1, 31), at(2, 5, 1, 31), at(4, 5, 31), at(6, 5, 1, 31)}, false},
		{"a sync is finished in between", []look{at(0, 5, 1, 31), at(2, 5, 1, 31), at(4, 6, 1, 31), at(6, 6, 1, 31)}, false},
		{"slow syncs", []look{at(0, 5), at(40, 6), at(80, 7), at(120, 8), at(160, 9)}, false},
		{"a slow sync", []look{at(0, 5), at(long-1, 5)}, false},
		{"no sync for too long", []look{at(0, 5), at(10, 6), at(9+long, 6), at(10+long, 6)}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h hang
			for i, l := range c.looks {
				last := i == len(c.looks)-1
				if hangs := h.see(l); hangs != (last && c.hangs) {
					t.Errorf("look %d: hangs %v", i, hangs)
				}
			}
		})
	}
}

func TestParseLook(t *testing.T) {
	const status = "HTTP/1.0 200 OK\r\n"
	const ok = status + "Content-Type: text/plain\r\n\r\n"
	says := func(parts ...string) string { return strings.Join(parts, "\n==\n") }
	const metrics = syncMetric + " 17\n"
	const dump = `goroutine 1 [syscall]:
syscall.Syscall6(0x2d)
k8s.io/kubernetes/vendor/github.com/vishvananda/netlink/nl.(*NetlinkSocket).Receive(0xc0)
k8s.io/kubernetes/vendor/github.com/docker/libnetwork/ipvs.execute(0xc0)

goroutine 2 [running]:
main.main()
`
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name, text string
		want       look
		err        string
	}{
		{"all of it", says(ok+"ipvs", status+metrics, ok+dump, "512\n"), look{at, ipvs, 17, []int{1}, 512}, ""},
		{"no sync yet", says(ok+"ipvs", status, ok+dump, "0\n"), look{at, ipvs, 0, []int{1}, 0}, ""},
		{"cut short", says(ok+"ipvs", status+metrics), look{}, "2 parts, not 4"},
		{"no mode", says("", status+metrics, ok+dump, "0\n"), look{}, "asking kube-proxy: it answers \"\""},
		{"no metrics", says(ok+"ipvs", "", ok+dump, "0\n"), look{}, "asking kube-proxy: it answers \"\""},
		{"no profiling", says(ok+"ipvs", status+metrics, "HTTP/1.0 404 Not Found\r\n\r\n", "0\n"), look{}, "404 Not Found"},
		{"no count", says(ok+"ipvs", status, ok, ""), look{}, "counting in kube-proxy's log"},
		{"no number", says(ok+"ipvs", status+syncMetric+" x\n", ok, "0\n"), look{}, "reading kube-proxy's metrics"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseLook(c.text, at)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(look{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
		})
	}
}

// The script, asking a server that answers as kube-proxy's does.
func TestLookScript(t *testing.T) {
	mux := http.NewServeMux()
	for path, body := range map[string]string{
		"/proxyMode": ipvs, "/metrics": "# HELP x\n" + syncMetric + "_other 3\n" + syncMetric + " 17\n",
		"/debug/pprof/goroutine": "goroutine 1 [running]:\nmain.main()\n",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	pods := t.TempDir()
	for i, name := range []string{"new", "old"} {
		dir := filepath.Join(pods, "kube-system_kube-proxy-"+name, "kube-proxy")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		file, entry := filepath.Join(dir, "0.log"), "Trying to delete rs: "+busyVIP.String()+":80/TCP\n"
		if err := os.WriteFile(file, []byte(strings.Repeat(entry, 3+i)), 0o644); err != nil {
			t.Fatal(err)
		}
		written := time.Now().Add(-time.Duration(i) * time.Minute)
		if err := os.Chtimes(file, written, written); err != nil {
			t.Fatal(err)
		}
	}
	script := strings.NewReplacer("/10249", "/"+port, "/var/log/pods", pods).Replace(lookScript)
	text, err := exec.CommandContext(t.Context(), "bash", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	got, err := parseLook(string(text), at)
	if diff := cmp.Diff(look{at, ipvs, 17, nil, 3}, got, cmp.AllowUnexported(look{})); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s\n%s", err, diff, text)
	}
	server.Close()
	if text, err := exec.CommandContext(t.Context(), "bash", "-c", script).Output(); err == nil {
		t.Errorf("no kube-proxy, and no error: %s", text)
	}
}
