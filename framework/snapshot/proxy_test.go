package snapshot

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// recordedDump is of a kube-proxy 1.13.0 that hangs: two goroutines of its 33 that wait for IPVS, and two others.
func recordedDump(t testing.TB) string {
	return string(must.Read(t, "testdata/kube-proxy-1.13.0-goroutines.txt"))
}

func TestParseGoroutines(t *testing.T) {
	all := ParseGoroutines(recordedDump(t))
	waiting := each.Where(all, Goroutine.WaitsForIPVS)
	if len(all) != 4 || len(waiting) != 2 || waiting[0].ID != 1 || waiting[1].ID != 31 {
		t.Fatalf("of %d goroutines, these wait for IPVS: %+v", len(all), waiting)
	}
	for i, want := range []string{
		"k8s.io/kubernetes/pkg/proxy/ipvs.(*Proxier).syncProxyRules",
		"k8s.io/kubernetes/pkg/proxy/ipvs.(*GracefulTerminationManager).tryDeleteRs",
	} {
		must.Contain(t, strings.Join(waiting[i].Functions, "\n")+"\n", want+"\n")
	}
}

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
		must.Equal(t, c.functions, c.want, (Goroutine{Functions: c.functions}).WaitsForIPVS())
	}
}

// A goroutine waits for the same answer for as long as the question is the same, however
// long that is, and however often it begins to read again.
func TestCalls(t *testing.T) {
	dump := recordedDump(t)
	first := func(dump string) Goroutine { return ParseGoroutines(dump)[0] }
	want := first(dump)
	header, rest, _ := strings.Cut(dump, "\n")
	longer := strings.Replace(header, "]", ", 2 minutes]", 1) + "\n" + rest
	// with replaces the first line of the first goroutine that begins so.
	with := func(begins, by string) string {
		i := strings.Index(dump, "\n"+begins) + 1
		return dump[:i] + strings.Replace(dump[i:], begins, by, 1)
	}
	const syscall, receive = "syscall.Syscall6(", "github.com/vishvananda/netlink/nl.(*NetlinkSocket).Receive("
	const execute, asks = "github.com/docker/libnetwork/ipvs.execute(", "github.com/docker/libnetwork/ipvs.(*Handle).doCmdwithResponse("
	for name, c := range map[string]struct {
		dump string
		same bool
	}{
		"later":                 {longer, true},
		"into another buffer":   {with(syscall, syscall+"0x7, "), true},
		"reads again":           {with(receive, receive+"0x7, "), true},
		"on another socket":     {with(execute, execute+"0x7, "), false},
		"about another Service": {with(asks, asks+"0x7, "), false},
		"for another function":  {with(asks, "github.com/docker/libnetwork/ipvs.(*Handle).doCmd("), false},
	} {
		if got := first(c.dump); got.ID != want.ID || got.Call == "" || (got.Call == want.Call) != c.same || c.dump == dump {
			t.Errorf("%s: call %q, before %q", name, got.Call, want.Call)
		}
	}
}

func FuzzParseGoroutines(f *testing.F) {
	f.Add(recordedDump(f))
	f.Add("goroutine 1 gp=0x1 m=2 mp=0x3 [running]:\nmain.main()\n")
	f.Fuzz(func(t *testing.T, dump string) {
		for _, g := range ParseGoroutines(dump) {
			must.Equal(t, g, false, g.ID < 0)
		}
	})
}

func answers(sections ...string) string { return strings.Join(sections, "\n") }

const (
	ok          = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
	unavailable = "HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n\r\n"
	table       = "== table\n" + ipvsHeader + "TCP  0A600865:1B5F rr  \n  -> 0A1E4002:1B5F      Masq    1      0          3\n"
)

func TestProxies(t *testing.T) {
	last := time.Date(2026, 11, 20, 13, 25, 44, 892222820, time.UTC)
	says := func(answer, health string, more ...string) string {
		return answers(append([]string{table, "== mode\n" + ok + "ipvs", "== healthz\n" + answer + health}, more...)...)
	}
	const late = http.StatusServiceUnavailable
	for _, c := range []struct {
		name, output string
		mode         string
		health       ProxyHealth
		age          time.Duration
		goroutines   int
	}{
		{"well", says(ok, `{"lastUpdated": "2026-11-20 13:25:44.89222282 +0000 UTC m=+18.495277741",`+
			`"currentTime": "2026-11-20 13:25:46.89222282 +0000 UTC m=+20.495277741"}`),
			"ipvs", ProxyHealth{Status: http.StatusOK, LastUpdated: last, CurrentTime: last.Add(2 * time.Second)}, 2 * time.Second, 0},
		{"well, of 1.34", says(ok, `{"lastUpdated":"2026-11-20T13:25:44.89222282Z",`+
			`"currentTime":"2026-11-20T13:25:46.89222282Z","nodeEligible":true}`),
			"ipvs", ProxyHealth{Status: http.StatusOK, LastUpdated: last, CurrentTime: last.Add(2 * time.Second)}, 2 * time.Second, 0},
		{"hangs", says(unavailable, `{"lastUpdated": "2026-11-20 13:25:44.89222282 +0000 UTC m=+18.495277741",`+
			`"currentTime": "2026-11-20 13:26:44.89222282 +0000 UTC m=+78.495277741"}`, "== goroutines\n"+ok+recordedDump(t)),
			"ipvs", ProxyHealth{Status: late, LastUpdated: last, CurrentTime: last.Add(time.Minute)}, time.Minute, 2},
		{"on a node that the autoscaler removes, of 1.31", says(unavailable, `{"lastUpdated": "2026-11-20 13:25:44.89222282 +0000 UTC m=+1.4",`+
			`"currentTime": "2026-11-20 13:25:44.89222282 +0000 UTC m=+1.4", "nodeEligible": false}`),
			"ipvs", ProxyHealth{Status: late, Leaving: true, LastUpdated: last, CurrentTime: last}, 0, 0},
		{"on a node that the autoscaler removes, of 1.34", says(unavailable, `{"lastUpdated":"2026-11-20T13:25:44.89222282Z",`+
			`"currentTime":"2026-11-20T13:25:44.89222282Z","nodeEligible":false,"healthy":true}`),
			"ipvs", ProxyHealth{Status: late, Leaving: true, LastUpdated: last, CurrentTime: last}, 0, 0},
		{"late for one family, on such a node", says(unavailable,
			`{"lastUpdated":"2026-11-20T13:26:40Z","currentTime":"2026-11-20T13:26:44.89222282Z","nodeEligible":false,"healthy":false,`+
				`"status":{"IPv4":{"lastUpdated":"2026-11-20T13:25:44.89222282Z","healthy":false},"IPv6":{"lastUpdated":"2026-11-20T13:26:40Z","healthy":true}}}`),
			"ipvs", ProxyHealth{Status: late, LastUpdated: last, CurrentTime: last.Add(time.Minute)}, time.Minute, 0},
		{"has just started", says(ok, `{"lastUpdated": "0001-01-01 00:00:00 +0000 UTC",`+
			`"currentTime": "2026-11-20 13:25:44.89222282 +0000 UTC m=+0.5"}`),
			"ipvs", ProxyHealth{Status: http.StatusOK, CurrentTime: last}, 0, 0},
		{name: "does not run", output: answers(table, "== mode", "== healthz", "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := fakeMachine{exec: func(context.Context, ...string) (string, error) { return c.output, nil }}
			p := proxyReader("edge", node)(t.Context())
			if !p.Read || p.Node != "edge" {
				t.Fatalf("%+v", p)
			}
			must.Equal(t, "health", c.health, p.Health)
			must.Equal(t, "mode, age, goroutines", []any{c.mode, c.age, c.goroutines}, []any{p.Mode, p.Health.Age(), len(p.Goroutines)})
			if len(p.Table) != 1 || len(p.Table[0].Servers) != 1 || p.Table[0].Servers[0].Inactive != 3 {
				t.Errorf("table %+v", p.Table)
			}
			must.Equal(t, "late", c.health.Late(), p.Health.Late())
		})
	}
}

func TestProxyErrors(t *testing.T) {
	for name, output := range map[string]string{
		"asking kube-proxy: the guest is off": "",
		"lastUpdated":                         "== healthz\n" + ok + `{"lastUpdated": "x"}`,
		"reading kube-proxy's healthz":        "== healthz\n" + ok + "fine",
		// Of no kube-proxy, and a namespace that cannot be read: nobody knows that it has no rules.
		"finding the network namespace": "== mode\n",
		"line 4 of /proc/net/ip_vs":     "== table\n" + ipvsHeader + "TCP",
	} {
		p := proxyReader("edge", fakeMachine{exec: func(context.Context, ...string) (string, error) {
			if output == "" {
				return "", errors.New("the guest is off")
			}
			return output, nil
		}})(t.Context())
		if p.Read || !strings.Contains(p.Error, name) {
			t.Errorf("%+v, want the error %q", p, name)
		}
	}
}

// What a scenario asks beside what the detectors do.
func TestProxyQuery(t *testing.T) {
	const syncs = "kubeproxy_sync_proxy_rules_latency_microseconds_count"
	q := ProxyQuery{Counters: []string{syncs}, Goroutines: true, LogLines: "Trying to delete rs: 10.96.0.102"}
	for _, tt := range []struct {
		name   string
		output string
		want   Proxy
		err    string
	}{
		{name: "all of it", want: Proxy{Mode: "ipvs", Dumped: true, Counters: map[string]float64{syncs: 7}, LogLines: 12},
			output: answers("", "== mode", ok+"ipvs", "== counters", "HTTP/1.0 200 OK\r", "\r", syncs+" 7", "", "== goroutines", ok+recordedDump(t), "== log", "12", "")},
		{name: "no sync yet", want: Proxy{Mode: "ipvs", Dumped: true, Counters: map[string]float64{}},
			output: answers("", "== mode", ok+"ipvs", "== counters", "HTTP/1.0 200 OK\r", "\r", "", "== goroutines", ok, "== log", "0")},
		{name: "it does not run", output: answers("", "== mode", "", "== counters", "", "== goroutines", "", "== log", "3"),
			want: Proxy{LogLines: 3}},
		{name: "no profiling", output: answers("== mode", ok+"ipvs", "== goroutines", "HTTP/1.0 404 Not Found\r\n\r\n"), want: Proxy{Mode: "ipvs"}},
		{name: "no log", output: answers("== mode", ok+"ipvs", "== log", ""), err: "counting lines in kube-proxy's log: "},
		{name: "a metric that is none", output: answers("== counters", ok+syncs+" many"), err: "reading kube-proxy's metrics: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := q.Ask(t.Context(), fakeMachine{exec: func(context.Context, ...string) (string, error) { return tt.output, nil }})
			if fails(t, err, tt.err); err != nil {
				return
			}
			if tt.name == "all of it" {
				must.Equal(t, "goroutines that wait for IPVS", 2, len(got.Goroutines))
			}
			got.Goroutines = nil
			must.Equal(t, "", tt.want, got)
		})
	}
}

// The commands of both queries are run for what they are, against a server in kube-proxy's place.
func TestProxyScriptsRun(t *testing.T) {
	const late = `{"lastUpdated": "2026-11-20 13:25:44.89222282 +0000 UTC m=+18.4","currentTime": "2026-11-20 13:26:44.89222282 +0000 UTC m=+78.4"}`
	var status atomic.Int32
	var health atomic.Value
	status.Store(http.StatusServiceUnavailable)
	health.Store(late)
	served := map[string]string{
		"/proxyMode": "ipvs", "/debug/pprof/goroutine": recordedDump(t),
		"/metrics": "# TYPE syncs counter\nother 1\nsyncs 7\nsyncs_since 3\n",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			w.WriteHeader(int(status.Load()))
			io.WriteString(w, health.Load().(string))
		}
		if text, there := served[r.URL.Path]; there {
			io.WriteString(w, text)
		} else if r.URL.Path == "/metrics" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	table, old, running := filepath.Join(dir, "ip_vs"), filepath.Join(dir, "kube-system_kube-proxy-a", "kube-proxy"), filepath.Join(dir, "kube-system_kube-proxy-b", "kube-proxy")
	write := func(file, text string, written time.Time) {
		t.Helper()
		must.NoError(t, os.Chtimes(must.Write(t, file, text), written, written))
	}
	write(table, ipvsHeader+"TCP  0A600865:1B5F rr  \n", time.Unix(9, 0))
	write(filepath.Join(running, "1.log"), "rs: a\nrs: b\nrs: a\n", time.Unix(2, 0))
	write(filepath.Join(running, "0.log"), "", time.Unix(1, 0))
	write(filepath.Join(old, "0.log"), "rs: a\n", time.Unix(1, 0))
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	here := strings.NewReplacer("10249", port, "10256", port, "/var/log/pods", dir, "/proc/net/ip_vs", table)
	node := fakeMachine{exec: func(ctx context.Context, command ...string) (string, error) {
		command[len(command)-1] = here.Replace(command[len(command)-1])
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		return string(out), err
	}}
	looked, err := ProxyQuery{Health: true, Table: true}.Ask(t.Context(), node)
	if err != nil || looked.Mode != "ipvs" || !looked.Health.Late() || looked.Health.Age() != time.Minute || len(looked.Goroutines) != 2 || len(looked.Table) != 1 {
		t.Errorf("looked at: %+v, %v", looked, err)
	}
	asked, err := ProxyQuery{Counters: []string{"syncs"}, Goroutines: true, LogLines: "rs: a"}.Ask(t.Context(), node)
	if err != nil || asked.Mode != "ipvs" || !cmp.Equal(asked.Counters, map[string]float64{"syncs": 7}) || !asked.Dumped || len(asked.Goroutines) != 2 || asked.LogLines != 2 {
		t.Errorf("asked: %+v, %v", asked, err)
	}
	// kube-proxy is well now: it is looked into where it has finished no sync since.
	status.Store(http.StatusOK)
	read := proxyReader("edge", node)
	for i, want := range []bool{false, true, true} {
		if p := read(t.Context()); !p.Read || p.Health.Late() || p.Dumped != want {
			t.Errorf("poll %d: dumped %v, want %v: %+v", i, p.Dumped, want, p)
		}
	}
	health.Store(strings.Replace(late, "13:25:44.89", "13:26:04.89", 1))
	for i, want := range []bool{false, true} {
		if p := read(t.Context()); !p.Read || p.Dumped != want {
			t.Errorf("poll %d after a sync: dumped %v, want %v: %+v", i, p.Dumped, want, p)
		}
	}
	served["/proxyMode"], served["/metrics"] = "nftables", `kubernetes_build_info{build_date="x",git_version="v1.34.4",platform="linux/amd64"} 1
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.795802125323897e+09
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 0
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.795802126e+09
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 3
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 4
`
	nft, err := ProxyQuery{Health: true}.Ask(t.Context(), node)
	want := map[string]ProxySync{"IPv4": {Last: time.UnixMicro(1795802125323897).UTC(), Queued: time.UnixMicro(1795802126e6).UTC(), Failed: 3}, "IPv6": {Failed: 4}}
	if d := cmp.Diff(want, nft.Syncs); err != nil || nft.Version != "1.34.4" || d != "" || !nft.Health.LastUpdated.IsZero() {
		t.Errorf("in mode nftables: %+v, %v (-want +got):\n%s", nft, err, d)
	}
	delete(served, "/metrics")
	if nft, err := (ProxyQuery{Health: true}).Ask(t.Context(), node); err != nil || nft.Mode != NFTables || nft.Syncs != nil || !nft.Health.LastUpdated.IsZero() {
		t.Errorf("in mode nftables without metrics: %+v, %v", nft, err)
	}
	server.Close()
	if off, err := (ProxyQuery{Health: true, Table: true}).Ask(t.Context(), node); err != nil || off.Mode != "" || off.Health.Status != 0 || off.Dumped || len(off.Table) != 1 {
		t.Errorf("without a kube-proxy: %+v, %v", off, err)
	}
}
