package snapshot

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// recordedDump is of a kube-proxy 1.13.0 that hangs: two goroutines of its 33
// that wait for IPVS, and two others.
func recordedDump(t testing.TB) string {
	text, err := os.ReadFile("testdata/kube-proxy-1.13.0-goroutines.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParseGoroutines(t *testing.T) {
	var waiting []Goroutine
	all := ParseGoroutines(recordedDump(t))
	for _, g := range all {
		if g.WaitsForIPVS() {
			waiting = append(waiting, g)
		}
	}
	if len(all) != 4 || len(waiting) != 2 {
		t.Fatalf("%d goroutines, %d of them wait for IPVS", len(all), len(waiting))
	}
	if waiting[0].ID != 1 || waiting[1].ID != 31 || waiting[0].State != "syscall" {
		t.Errorf("%+v", waiting)
	}
	for i, want := range []string{
		"k8s.io/kubernetes/pkg/proxy/ipvs.(*Proxier).syncProxyRules",
		"k8s.io/kubernetes/pkg/proxy/ipvs.(*GracefulTerminationManager).tryDeleteRs",
	} {
		if !slices.Contains(waiting[i].Functions, want) {
			t.Errorf("goroutine %d is not in %s: %q", waiting[i].ID, want, waiting[i].Functions)
		}
	}
}

// A netlink socket is used for other things than IPVS, and IPVS without
// waiting.
func TestWaitsForIPVS(t *testing.T) {
	const receive, execute = "github.com/vishvananda/netlink/nl.(*NetlinkSocket).Receive", "github.com/docker/libnetwork/ipvs.execute"
	for _, c := range []struct {
		functions []string
		want      bool
	}{
		{[]string{"syscall.Syscall6", receive, execute, "main.main"}, true},
		{[]string{"syscall.Syscall6", receive, "github.com/vishvananda/netlink/nl.(*NetlinkRequest).Execute"}, false},
		{[]string{execute, receive}, false},
		{[]string{execute}, false},
		{nil, false},
	} {
		if got := (Goroutine{Functions: c.functions}).WaitsForIPVS(); got != c.want {
			t.Errorf("%q: %v", c.functions, got)
		}
	}
}

func FuzzParseGoroutines(f *testing.F) {
	f.Add(recordedDump(f))
	f.Add("goroutine 1 gp=0x1 m=2 mp=0x3 [running]:\nmain.main()\n")
	f.Fuzz(func(t *testing.T, dump string) {
		for _, g := range ParseGoroutines(dump) {
			if g.ID < 0 {
				t.Errorf("%+v", g)
			}
		}
	})
}

// answers puts together what the script prints.
func answers(sections ...string) string { return strings.Join(sections, "\n") }

const (
	ok          = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
	unavailable = "HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n\r\n"
	table       = "== table\n" + ipvsHeader + "TCP  0A600865:1B5F rr  \n  -> 0A1E4002:1B5F      Masq    1      0          3\n"
)

func TestNodeProxy(t *testing.T) {
	last := time.Date(2026, 11, 20, 13, 25, 44, 892222820, time.UTC)
	for _, c := range []struct {
		name, output string
		mode         string
		health       ProxyHealth
		age          time.Duration
		goroutines   int
	}{
		{
			name: "well",
			output: answers(table, "== mode\n"+ok+"ipvs", "== healthz\n"+ok+
				`{"lastUpdated": "2026-11-20 13:25:44.89222282 +0000 UTC m=+18.495277741","currentTime": "2026-11-20 13:25:46.89222282 +0000 UTC m=+20.495277741"}`),
			mode: "ipvs", health: ProxyHealth{Status: http.StatusOK, LastUpdated: last, CurrentTime: last.Add(2 * time.Second)}, age: 2 * time.Second,
		},
		{
			name: "hangs",
			output: answers(table, "== mode\n"+ok+"ipvs", "== healthz\n"+unavailable+
				`{"lastUpdated": "2026-11-20 13:25:44.89222282 +0000 UTC m=+18.495277741","currentTime": "2026-11-20 13:26:44.89222282 +0000 UTC m=+78.495277741"}`,
				"== goroutines\n"+ok+recordedDump(t)),
			mode: "ipvs", health: ProxyHealth{Status: http.StatusServiceUnavailable, LastUpdated: last, CurrentTime: last.Add(time.Minute)},
			age: time.Minute, goroutines: 2,
		},
		{
			name: "has just started",
			output: answers(table, "== mode\n"+ok+"ipvs", "== healthz\n"+ok+
				`{"lastUpdated": "0001-01-01 00:00:00 +0000 UTC","currentTime": "2026-11-20 13:25:44.89222282 +0000 UTC m=+0.5"}`),
			mode: "ipvs", health: ProxyHealth{Status: http.StatusOK, CurrentTime: last},
		},
		{name: "does not run", output: answers(table, "== mode", "== healthz", "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := NodeProxy(func(context.Context, ...string) (string, error) { return c.output, nil })(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p.Mode != c.mode || p.Health.Status != c.health.Status || !p.Health.LastUpdated.Equal(c.health.LastUpdated) ||
				!p.Health.CurrentTime.Equal(c.health.CurrentTime) || p.Health.Age() != c.age || len(p.Goroutines) != c.goroutines {
				t.Errorf("%+v", p)
			}
			if len(p.Table) != 1 || len(p.Table[0].Servers) != 1 || p.Table[0].Servers[0].Inactive != 3 {
				t.Errorf("table %+v", p.Table)
			}
			if p.Health.Late() != (c.health.Status == http.StatusServiceUnavailable) {
				t.Errorf("late: %v", p.Health.Late())
			}
		})
	}
}

func TestNodeProxyErrors(t *testing.T) {
	for name, exec := range map[string]func(context.Context, ...string) (string, error){
		"asking kube-proxy: the guest is off": func(context.Context, ...string) (string, error) { return "", errors.New("the guest is off") },
		"lastUpdated": func(context.Context, ...string) (string, error) {
			return "== healthz\n" + ok + `{"lastUpdated": "x"}`, nil
		},
		"reading kube-proxy's healthz": func(context.Context, ...string) (string, error) { return "== healthz\n" + ok + "fine", nil },
		"line 4 of /proc/net/ip_vs":    func(context.Context, ...string) (string, error) { return "== table\n" + ipvsHeader + "TCP", nil },
	} {
		if _, err := NodeProxy(exec)(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
}
