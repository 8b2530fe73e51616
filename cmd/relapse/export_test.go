package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/metrics"
	"github.com/relapse-dev/relapse/framework/report/trace"
)

// TestExport: metrics are always written, and spans are sent if there is an endpoint. A
// failure is a line of the log.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	stored, err := readRun(storeRun(t, dir, func(r *report.Report) {
		r.Variants = append(r.Variants, report.Variant{Name: "cilium-1.12.0", Role: "fixed", Expected: "prevented", Verdict: "prevented"})
	}))
	if err != nil {
		t.Fatal(err)
	}
	reports := []report.Report{stored.report}
	var asked, status atomic.Int64
	status.Store(http.StatusOK)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	defer endpoint.Close()
	var warned bytes.Buffer
	log := slog.New(slog.NewTextHandler(&warned, nil))

	t.Setenv(trace.Endpoint, "")
	t.Setenv(trace.TracesEndpoint, "")
	export(t.Context(), log, dir, reports)
	if text := read(t, filepath.Join(dir, metrics.Name)); !strings.Contains(text, `relapse_run_verdict{scenario="node-drain",owner="",verdict="pass"} 1.0`) {
		t.Errorf("metrics: %s", text)
	}
	if asked.Load() != 0 || warned.Len() != 0 {
		t.Errorf("asked %d times, %s", asked.Load(), &warned)
	}

	t.Setenv(trace.Endpoint, endpoint.URL)
	export(t.Context(), log, dir, reports)
	if asked.Load() != 1 || warned.Len() != 0 {
		t.Errorf("asked %d times, %s", asked.Load(), &warned)
	}

	status.Store(http.StatusForbidden)
	export(t.Context(), log, filepath.Join(dir, "gone"), reports)
	for _, want := range []string{"the metrics could not be written", "the spans of the run could not be sent", "403"} {
		if !strings.Contains(warned.String(), want) {
			t.Errorf("the log does not have %q: %s", want, &warned)
		}
	}
}
