package trace

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlptrace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }

func step(scope, name string, from, to int, failed string) report.Step {
	return report.Step{ID: strings.Replace(name, ": ", "/", 1), Scope: scope, Name: name, Began: at(from), Ended: new(at(to)), Failed: failed}
}

// drain is a run in which a remedy does not help that should.
func drain() report.Report {
	return report.Report{
		Scenario: "drain", Run: "2026-01-02T03-04-05Z", Verdict: "fail", Owner: "@net", Started: began, Timings: report.Timings{Total: 30_000},
		Steps: []report.Step{
			step("lab", "lab is up", 0, 5, ""), step("old", "fault", 8, 10, ""), step("old", "detectors", 10, 12, ""),
			step("old", "remedy: restart", 12, 20, "not as expected: 3 packets lost"), step("lab", "lab is down", 25, 30, ""),
		},
		Variants: []report.Variant{
			{
				Name: "old", Role: "affected", Form: "slice", Expected: "reproduced", Verdict: "reproduced", Began: new(at(5)), ElapsedMS: 18_000,
				Components: map[string]string{"cilium before the upgrade": "1.8.1"},
				Findings: []report.Finding{
					{Finding: detect.Finding{Detector: "routes", Kind: "drift", State: "latent", Object: detect.Prefix(netip.MustParsePrefix("10.0.0.0/24")), Says: "it waits"}, During: "baseline"},
					{Finding: detect.Finding{Detector: "routes", Kind: "gone", State: "active", Object: detect.Prefix(netip.MustParsePrefix("10.0.0.0/24")), Says: "it is gone"}, During: "fault", At: new(at(11)), TimeToDetectMS: new(int64(258))},
				},
				Remedies: []report.Remedy{{ID: "restart", Name: "restart", Expected: "recovers", Verdict: "does-not-help"}},
			},
			{Name: "new", Role: "fixed", Expected: "prevented"}, // the run ended before it
		},
	}
}

// receiver is an OTLP receiver on loopback.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
	spans []*otlptrace.Span
	of    map[string]string // the resource
	turn  func() int        // the status of each answer
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{of: map[string]string{}, turn: func() int { return http.StatusOK }}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		body, err := io.ReadAll(request.Body)
		var message collectortrace.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &message)
		}
		if err != nil {
			t.Error(err)
		}
		r.paths = append(r.paths, request.Method+" "+request.URL.Path)
		if status := r.turn(); status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		for _, of := range message.ResourceSpans {
			for _, a := range of.Resource.Attributes {
				r.of[a.Key] = a.Value.GetStringValue()
			}
			for _, scope := range of.ScopeSpans {
				r.spans = append(r.spans, scope.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	t.Setenv(Endpoint, r.URL)
	return r
}

// tree renders the spans that have a parent, in order of time, and what is in them.
func (r *receiver) tree(parent []byte, indent string) string {
	var text strings.Builder
	children := slices.DeleteFunc(slices.Clone(r.spans), func(s *otlptrace.Span) bool { return string(s.ParentSpanId) != string(parent) })
	slices.SortStableFunc(children, func(a, b *otlptrace.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	since := func(nanoseconds uint64) float64 { return time.Unix(0, int64(nanoseconds)).Sub(began).Seconds() }
	for _, s := range children {
		fmt.Fprintf(&text, "%s%s %g-%g", indent, s.Name, since(s.StartTimeUnixNano), since(s.EndTimeUnixNano))
		if s.Status.GetCode() == otlptrace.Status_STATUS_CODE_ERROR {
			fmt.Fprintf(&text, " error: %s", s.Status.Message)
		}
		for _, a := range s.Attributes {
			if slices.Contains([]string{"relapse.owner", "relapse.verdict", "relapse.component.cilium_before_the_upgrade"}, a.Key) {
				fmt.Fprintf(&text, " %s=%s", a.Key, a.Value.GetStringValue())
			}
		}
		text.WriteString("\n")
		for _, e := range s.Events {
			says := ""
			for _, a := range e.Attributes {
				if a.Key == "relapse.says" {
					says = a.Value.GetStringValue()
				}
			}
			fmt.Fprintf(&text, "%s  * %s %g: %s\n", indent, e.Name, since(e.TimeUnixNano), says)
		}
		text.WriteString(r.tree(s.SpanId, indent+"  "))
	}
	return text.String()
}

func TestExport(t *testing.T) {
	r := newReceiver(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "night=tuesday")
	if !Wanted() {
		t.Error("an endpoint is set")
	}
	if err := Export(t.Context(), drain()); err != nil {
		t.Fatal(err)
	}
	const want = `run drain 0-30 error: fail relapse.verdict=fail relapse.owner=@net
  lab is up 0-5
  variant old 5-23 relapse.verdict=reproduced relapse.component.cilium_before_the_upgrade=1.8.1
    * finding 5: it waits
    fault 8-10
    detectors 10-12
      * finding 11: it is gone
    remedy: restart 12-20 error: not as expected: 3 packets lost relapse.verdict=does-not-help
  lab is down 25-30
`
	if diff := cmp.Diff(want, r.tree(nil, "")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !slices.Equal(r.paths, []string{"POST /v1/traces"}) || r.of["service.name"] != "relapse" || r.of["night"] != "tuesday" {
		t.Errorf("%q, %q", r.paths, r.of)
	}
	traces := map[string]bool{}
	for _, s := range r.spans {
		traces[hex.EncodeToString(s.TraceId)] = true
	}
	if len(traces) != 1 {
		t.Errorf("%d traces of one run", len(traces))
	}
}

func TestExportThatFails(t *testing.T) {
	r := newReceiver(t)
	r.turn = func() int { return http.StatusForbidden }
	err := Export(t.Context(), drain())
	if err == nil || !strings.Contains(err.Error(), "sending spans to "+r.URL) || !strings.Contains(err.Error(), "403") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Export(ctx, drain()); err == nil {
		t.Error("nothing was sent, and nobody is told")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if err := Export(t.Context(), drain()); err == nil || !strings.Contains(err.Error(), `is "grpc"; relapse supports only http/protobuf`) {
		t.Errorf("%v", err)
	}
}

func TestWanted(t *testing.T) {
	for _, name := range []string{Endpoint, TracesEndpoint, "OTEL_SDK_DISABLED"} {
		t.Setenv(name, "")
	}
	if Wanted() {
		t.Error("no endpoint is set")
	}
	t.Setenv(TracesEndpoint, "http://127.0.0.1:4318/v1/traces")
	if !Wanted() {
		t.Error("one is set for traces")
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if Wanted() {
		t.Error("OpenTelemetry is switched off")
	}
}
