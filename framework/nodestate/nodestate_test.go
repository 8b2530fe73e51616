package nodestate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// node is a machine that runs commands, and has no kernel of its own.
type node struct {
	snapshot.Machine
	ran []string
}

var errNone = errors.New("it has none")

func (n *node) Exec(_ context.Context, command ...string) (string, error) {
	n.ran = append(n.ran, command[0])
	return "\n== mode\nHTTP/1.0 200 OK\r\n\r\nipvs", nil
}
func (*node) PID(context.Context) (int, error)             { return 0, errNone }
func (*node) Netns(context.Context) (string, error)        { return "", errNone }
func (*node) Path(context.Context, string) (string, error) { return "", errNone }

// Only a GET with the key is answered, and nothing is read for another.
func TestHandler(t *testing.T) {
	opens := Key("secret", "worker1")
	for name, test := range map[string]struct {
		method, path, key string
		status            int
		left              time.Duration // of the key
	}{
		"the key":       {http.MethodGet, Path, opens, http.StatusOK, time.Minute},
		"no key":        {http.MethodGet, Path, "", http.StatusUnauthorized, time.Minute},
		"another key":   {http.MethodGet, Path, "secre", http.StatusUnauthorized, time.Minute},
		"another path":  {http.MethodGet, "/", opens, http.StatusNotFound, time.Minute},
		"no path known": {http.MethodGet, "/", "", http.StatusUnauthorized, time.Minute},
		"a change":      {http.MethodPost, Path, opens, http.StatusMethodNotAllowed, time.Minute},
		"only a head":   {http.MethodHead, Path, opens, http.StatusMethodNotAllowed, time.Minute},
		"an old key":    {http.MethodGet, Path, opens, http.StatusGone, -time.Minute},
		"of another":    {http.MethodGet, Path, Key("secret", "worker2"), http.StatusUnauthorized, time.Minute},
		"of all":        {http.MethodGet, Path, "secret", http.StatusUnauthorized, time.Minute},
	} {
		var n node
		h := must.Get(Handler(t.Context(), "worker1", "secret", time.Now().Add(test.left), &n))(t)
		r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, nil)
		if test.key != "" {
			r.Header.Set(KeyHeader, test.key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status || len(n.ran) > 0 != (test.status == http.StatusOK) {
			t.Errorf("%s: status %d, want %d; ran %q", name, w.Code, test.status, n.ran)
		}
		if test.status != http.StatusOK {
			continue
		}
		s, size, err := Read(w.Body, MaxAnswer)
		if err != nil || size == 0 {
			t.Fatal(err)
		}
		if len(s.Proxies) != 1 || s.Proxies[0].Node != "worker1" || s.Proxies[0].Mode != "ipvs" {
			t.Errorf("%+v", s.Proxies)
		}
		if len(s.NAT) != 1 || !strings.Contains(s.NAT[0].Rules.Error, errNone.Error()) || len(s.Firewalls) != 1 || len(s.NodeNetworks) != 1 || len(s.NodeTables) != 1 {
			t.Errorf("%+v", s)
		}
	}
	must.Fail(t, must.Err(Handler(t.Context(), "worker1", "", time.Now(), &node{})), "everybody could read this node")
}

// What detectors read is left, and too many connections are unread.
func TestCut(t *testing.T) {
	at := netip.MustParseAddrPort
	flow := func(protocol, seenAs, answeredBy string) snapshot.Flow {
		f := snapshot.Flow{Protocol: protocol, Source: at("10.0.0.1:1"), Destination: at("10.0.0.2:2"), SeenAs: at(seenAs)}
		if answeredBy != "" {
			f.Redirected, f.AnsweredBy = true, at(answeredBy)
		}
		return f
	}
	masked, redirected := flow("tcp", "10.0.0.9:1", ""), flow("udp", "10.0.0.1:1", "10.0.0.3:2")
	var s snapshot.Snapshot
	s.NAT = []snapshot.NodeNAT{{
		Rules: snapshot.List[snapshot.Rule]{Read: true, Items: []snapshot.Rule{
			{Chain: "PREROUTING", Target: "SERVICES"}, {Chain: "SERVICES", Target: "DNAT"}, {Chain: "POSTROUTING", Target: "MASQ"}, {Chain: "MASQ", Target: "MASQUERADE"},
		}},
		Flows: snapshot.List[snapshot.Flow]{Read: true, Items: []snapshot.Flow{
			masked, flow("tcp", "10.0.0.1:1", ""), flow("tcp", "10.0.0.1:1", "10.0.0.3:2"), redirected, flow("udp", "10.0.0.1:1", ""),
		}},
	}}
	cut(&s)
	must.Equal(t, "flows", []snapshot.Flow{masked, redirected}, s.NAT[0].Flows.Items, cmpopts.EquateComparable(snapshot.Flow{}))
	chains := each.Of(s.NAT[0].Rules.Items, func(r snapshot.Rule) string { return r.Chain })
	must.Equal(t, "chains", []string{"POSTROUTING", "MASQ"}, chains)
	s.NAT[0].Flows.Items = make([]snapshot.Flow, 0, maxFlows+1)
	for range maxFlows + 1 {
		s.NAT[0].Flows.Items = append(s.NAT[0].Flows.Items, masked)
	}
	cut(&s)
	if f := s.NAT[0].Flows; f.Read || len(f.Items) > 0 || f.Error != fmt.Sprintf("%d connections are translated, and %d are sent at most", maxFlows+1, maxFlows) {
		t.Errorf("read %t, %d flows, error %q", f.Read, len(f.Items), f.Error)
	}
}

// The largest answer that the program sends is one that Read takes: tens of thousands of
// connections.
func TestLargest(t *testing.T) {
	a := netip.MustParseAddrPort("255.255.255.255:65535")
	flows := make([]snapshot.Flow, maxFlows)
	for i := range flows {
		flows[i] = snapshot.Flow{Protocol: "icmp", Source: a, Destination: a, SeenAs: a, Redirected: true, AnsweredBy: a, Established: true, Expires: 1 << 62}
	}
	text := must.Get(json.Marshal(flows))(t)
	if len(text) > MaxAnswer/4 {
		t.Errorf("%d connections are %d bytes of the %d of an answer", maxFlows, len(text), MaxAnswer)
	}
}

// A node cannot take the auditor's memory by a short answer.
func TestReadBoundsObjects(t *testing.T) {
	var answer bytes.Buffer
	zip := gzip.NewWriter(&answer)
	_, err := zip.Write([]byte(`{"nat":[{"rules":{"read":true,"items":[{}` + strings.Repeat(",{}", maxObjects) + `]}}]}`))
	must.NoError(t, errors.Join(err, zip.Close()))
	_, _, err = Read(&answer, MaxAnswer)
	must.Fail(t, err, "objects")
}

func TestPod(t *testing.T) {
	for path, want := range map[string]string{
		Proxied("audit", "nodes-x7k2p"):         "nodes-x7k2p",
		Proxied("audit", ""):                    "",
		Proxied("audit", "a/b"):                 "",
		Proxied("audit", "a:b"):                 "",
		Proxied("other", "nodes-x7k2p"):         "",
		Proxied("audit", "nodes-x7k2p") + "/":   "",
		"/" + Proxied("audit", "nodes-x7k2p"):   "",
		"/api/v1/namespaces/audit/pods/a/proxy": "",
	} {
		if name, found := Pod(path, "audit"); found != (want != "") || found && name != want {
			t.Errorf("%s: %q, %t; want %q", path, name, found, want)
		}
	}
}

// An answer may be anything.
func FuzzRead(f *testing.F) {
	h := must.Get(Handler(f.Context(), "worker1", "secret", time.Now().Add(time.Hour), &node{}))(f)
	r := httptest.NewRequestWithContext(f.Context(), http.MethodGet, Path, nil)
	r.Header.Set(KeyHeader, Key("secret", "worker1"))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	f.Add(w.Body.Bytes())
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		const most = 1 << 20
		if _, size, err := Read(bytes.NewReader(answer), most); err == nil && size > most {
			t.Errorf("%d bytes were read", size)
		}
	})
}
