package snapshot

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

// A snapshot tells how far the API server's clock is ahead, and ages of objects are by it.
func TestServerAhead(t *testing.T) {
	for _, test := range []struct {
		name   string
		ahead  time.Duration
		date   string // in place of the time
		within [2]time.Duration
	}{
		{"the same clock", 0, "", [2]time.Duration{0, 0}},
		{"an hour ahead", time.Hour, "", [2]time.Duration{time.Hour - 5*time.Second, time.Hour + time.Second}},
		{"a day behind", -24 * time.Hour, "", [2]time.Duration{-24*time.Hour - 5*time.Second, -24*time.Hour + time.Second}},
		{"no time that can be read", time.Hour, "soon", [2]time.Duration{0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			nodes := protobuf(t, &corev1.NodeList{})
			api := serve(t, map[string]http.HandlerFunc{nodesPath: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().Add(test.ahead).UTC().Format(http.TimeFormat))
				if test.date != "" {
					w.Header().Set("Date", test.date)
				}
				nodes(w, r)
			}})
			s := open(t, fakeAccess{api: api}, Nodes).Collect(t.Context())
			if s.ServerAhead < test.within[0] || s.ServerAhead > test.within[1] || !s.Nodes.Read {
				t.Errorf("%s ahead, want %s", s.ServerAhead, test.within)
			}
			must.Equal(t, "what was created at this machine's time", s.ServerAhead, s.Age(s.Time))
		})
	}
}
