package portable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/audit/render"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/status"
)

const auditsApart = 10 * time.Second // the least, from one beginning to the next

// repeat audits until it is interrupted, and prints the changes. The exit status is the status of the last state, and
// 130, as of every interrupted command, before the first.
func (f auditFlags) repeat(cmd *cobra.Command, routing []bgprouter.Declared, suppressions []audit.Suppression, tell func(string)) error {
	ctx := cmd.Context()
	page := &metricsPage{err: audit.ErrNotAudited}
	if f.listen != "" {
		listener, err := net.Listen("tcp", f.listen)
		if err != nil {
			return status.Input("--listen: %w", err)
		}
		server := &http.Server{Handler: page, ReadHeaderTimeout: auditsApart}
		defer server.Close()
		go func() { _ = server.Serve(listener) }() // until it is closed
	}
	on, err := f.connect(ctx, routing, tell)
	if err != nil {
		return err
	}
	defer on.Close()
	tell(fmt.Sprintf("an audit every %s; Ctrl-C ends it", f.every))
	var changes audit.Changes
	for judged := false; ctx.Err() == nil; {
		next := time.NewTimer(f.every)
		reads, err := on.read(ctx, tell)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		tell = func(string) {} // messages of the first audit only
		result, unreadable := audit.Judge(reads)
		result.Relapse = ThisVersion()
		if unreadable == nil {
			f.finish(&result, reads, suppressions, routing)
		}
		events := changes.Take(reads, result, unreadable)
		if unreadable != nil && !judged {
			break // err is returned below
		}
		judged = true
		for _, e := range events {
			if err := f.print(cmd, e, e.String()); err != nil {
				return err
			}
		}
		page.set(changes.State())
		select {
		case <-next.C:
		case <-ctx.Done():
		}
		if on.Routing, err = bgprouter.Readers(routing, on.station); err != nil { // reading has closed them
			return status.Input("--routers: %s: %w", f.routers, err)
		}
	}
	state, err := changes.State()
	switch {
	case errors.Is(err, audit.ErrNotAudited):
		return ctx.Err()
	case err != nil:
		return &Ended{Status: ExitMachine, Why: err, watched: true}
	}
	cost := on.meter.Cost()
	state.Cost = &cost
	now := time.Now()
	line := fmt.Sprintf("%s end: %s; %s", now.UTC().Format(time.RFC3339), render.Summary(state), render.Costs(cost))
	if err := f.print(cmd, lastState{now, "end", state}, line); err != nil {
		return err
	}
	return &Ended{Status: auditStatus(state), watched: true}
}

type lastState struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	audit.Result
}

func (f auditFlags) print(cmd *cobra.Command, value any, text string) error {
	var err error
	if f.output == "json" {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(value)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), plain.Line(text))
	}
	if err != nil {
		return &Ended{Status: ExitMachine, Why: fmt.Errorf("writing the findings: %w", err)}
	}
	return nil
}

// metricsPage answers Prometheus with the last state, and with 503 while there is none.
type metricsPage struct {
	mu   sync.Mutex
	text []byte
	err  error
}

func (p *metricsPage) set(state audit.Result, err error) {
	var text bytes.Buffer
	if err == nil {
		err = render.OpenMetrics(&text, state)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.err = text.Bytes(), err
}

func (p *metricsPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.URL.Path != "/metrics":
		http.NotFound(w, r)
	case p.err != nil:
		http.Error(w, p.err.Error(), http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		_, _ = w.Write(p.text) // Prometheus tries again after an error
	}
}
