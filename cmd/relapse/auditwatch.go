package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/audit/render"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/report/plain"
)

// watch audits until it is interrupted, and prints what comes and goes. The exit status is that of
// the last state; before anything was judged it is that of every interrupted command.
func (f auditFlags) watch(cmd *cobra.Command, routing []bgprouter.Declared, tell func(string)) error {
	on, err := f.connect(cmd.Context(), routing, tell)
	if err != nil {
		return err
	}
	defer on.Close()
	lines := json.NewEncoder(cmd.OutOrStdout())
	w := audit.Watcher{Interval: f.interval, Between: audit.Between, Incidents: incidentsOf, Tell: func(e audit.Event) error {
		var err error
		if f.output == "json" {
			err = lines.Encode(e)
		} else {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), plain.Line(e.String()))
		}
		if err != nil {
			return &auditError{status: exitMachine, why: fmt.Errorf("writing the findings: %w", err)}
		}
		return nil
	}}
	tell(fmt.Sprintf("routers are read every %s; Ctrl-C ends the watch", f.interval))
	result, err := w.Run(cmd.Context(), on.Access)
	var unreadable *audit.UnreadableError
	if errors.As(err, &unreadable) {
		return &auditError{status: exitMachine, why: err, watched: true}
	}
	if err != nil {
		return err
	}
	cost := on.meter.Cost()
	result.Cost = &cost
	if f.output == "json" {
		err = lines.Encode(watchEnd{time.Now(), "end", result})
	} else {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s end: %s; %s\n", time.Now().UTC().Format(time.RFC3339), render.Summary(result), render.Costs(cost))
	}
	if err != nil {
		return &auditError{status: exitMachine, why: fmt.Errorf("writing the findings: %w", err)}
	}
	return &auditError{status: auditStatus(result), watched: true}
}

// watchEnd is the last line of a watch in JSON: the state at its end.
type watchEnd struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	audit.Result
}
