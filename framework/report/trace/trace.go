// Package trace sends runs as OpenTelemetry spans: the run, in it the lab and each variant,
// in those each phase and each remedy, with findings as events.
//
// Spans are made from the complete report, with its times, and sent by OTLP over HTTP to
// the endpoint in OpenTelemetry's own environment variables.
package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// Variables of OpenTelemetry, one of which says where spans go.
const (
	Endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	TracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// Wanted reports whether the environment has an endpoint for spans.
func Wanted() bool {
	return (os.Getenv(Endpoint) != "" || os.Getenv(TracesEndpoint) != "") && os.Getenv("OTEL_SDK_DISABLED") != "true"
}

// Export sends the spans of runs to the endpoint in the environment. It tries again until
// the endpoint accepts them or ctx ends, which is an error.
func Export(ctx context.Context, reports ...report.Report) error {
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if protocol != "http/protobuf" {
		return fmt.Errorf("sending spans: OTEL_EXPORTER_OTLP_PROTOCOL is %q; relapse supports only http/protobuf", protocol)
	}
	// Names from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before ours.
	of, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "relapse")), resource.WithFromEnv(), resource.WithHost())
	if err != nil {
		return fmt.Errorf("sending spans: %w", err)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return fmt.Errorf("sending spans: %w", err)
	}
	// All spans of a run are sent at once: a failure is an error here and not a line of a
	// log.
	ended := &collector{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(of), sdktrace.WithSpanProcessor(ended))
	for _, r := range reports {
		spans{provider.Tracer("github.com/relapse-dev/relapse")}.run(ctx, r)
	}
	sent := exporter.ExportSpans(ctx, ended.spans)
	if err := errors.Join(sent, provider.Shutdown(ctx), exporter.Shutdown(ctx)); err != nil {
		return fmt.Errorf("sending spans to %s: %w", cmp.Or(os.Getenv(TracesEndpoint), os.Getenv(Endpoint)), err)
	}
	return nil
}

// collector keeps every span that has ended.
type collector struct{ spans []sdktrace.ReadOnlySpan }

func (c *collector) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (c *collector) OnEnd(s sdktrace.ReadOnlySpan)                   { c.spans = append(c.spans, s) }
func (c *collector) Shutdown(context.Context) error                  { return nil }
func (c *collector) ForceFlush(context.Context) error                { return nil }

type spans struct{ tracer trace.Tracer }

// span makes a span. Within makes the spans inside it.
func (s spans) span(ctx context.Context, name string, began, ended time.Time, failed string, attributes []attribute.KeyValue, within func(context.Context, trace.Span)) {
	ctx, span := s.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(attributes...))
	if failed != "" {
		span.SetStatus(codes.Error, failed)
	}
	if within != nil {
		within(ctx, span)
	}
	span.End(trace.WithTimestamp(ended))
}

func (s spans) run(ctx context.Context, r report.Report) {
	failed := ""
	if r.Verdict != "pass" {
		failed = r.Verdict
	}
	attributes := []attribute.KeyValue{
		attribute.String("relapse.scenario", r.Scenario), attribute.String("relapse.run", r.Run), attribute.String("relapse.verdict", r.Verdict),
	}
	for key, value := range map[string]string{"relapse.owner": r.Owner, "relapse.ablated": r.Ablated, "relapse.command": r.Command} {
		if value != "" {
			attributes = append(attributes, attribute.String(key, value))
		}
	}
	ended := r.Started.Add(ms(r.Timings.Total))
	s.span(ctx, "run "+r.Scenario, r.Started, ended, failed, attributes, func(ctx context.Context, _ trace.Span) {
		done := map[string]bool{}
		for _, v := range r.Variants {
			scope := r.ScopeOf(v)
			done[scope] = true
			s.variant(ctx, r, v, scope)
		}
		// Steps of the lab, and of the repeats of a variant.
		for _, step := range r.Steps {
			if !done[step.Scope] {
				s.step(ctx, step, ended, nil)
			}
		}
	})
}

func (s spans) variant(ctx context.Context, r report.Report, v report.Variant, scope string) {
	if v.Began == nil {
		return // its installation never began
	}
	attributes := []attribute.KeyValue{
		attribute.String("relapse.variant", v.Name), attribute.String("relapse.role", v.Role), attribute.String("relapse.form", v.Form),
		attribute.String("relapse.verdict", v.Verdict), attribute.String("relapse.expected", v.Expected),
	}
	for name, version := range v.Components {
		attributes = append(attributes, attribute.String("relapse.component."+strings.ReplaceAll(name, " ", "_"), version))
	}
	failed := ""
	if v.Verdict != v.Expected && v.Expected != "" || v.Verdict == "unknown" {
		failed = strings.Join(append([]string{v.Verdict}, v.Reasons...), "; ")
	}
	ended := v.Began.Add(ms(v.ElapsedMS))
	steps := slices.DeleteFunc(slices.Clone(r.Steps), func(step report.Step) bool { return step.Scope != scope })
	for _, step := range steps { // the lab is restored after the verdict
		if step.Ended != nil && step.Ended.After(ended) {
			ended = *step.Ended
		}
	}
	s.span(ctx, "variant "+v.Name, *v.Began, ended, failed, attributes, func(ctx context.Context, span trace.Span) {
		in := make([][]report.Finding, len(steps))
		for _, f := range v.Findings {
			at := slices.IndexFunc(steps, func(step report.Step) bool {
				return f.At != nil && !f.At.Before(step.Began) && (step.Ended == nil || f.At.Before(*step.Ended))
			})
			if at < 0 { // between two phases, or in the baseline
				event(span, f, *v.Began)
				continue
			}
			in[at] = append(in[at], f)
		}
		for i, step := range steps {
			s.step(ctx, step, ended, func(_ context.Context, span trace.Span) {
				remedied(span, v, step)
				for _, f := range in[i] {
					event(span, f, step.Began)
				}
			})
		}
	})
}

// step is the span of a phase, or of a remedy.
func (s spans) step(ctx context.Context, step report.Step, runEnded time.Time, within func(context.Context, trace.Span)) {
	ended := runEnded
	if step.Ended != nil {
		ended = *step.Ended
	}
	s.span(ctx, step.Name, step.Began, ended, step.Failed, []attribute.KeyValue{attribute.String("relapse.scope", step.Scope)}, within)
}

// remedied adds a remedy's result to its span.
func remedied(span trace.Span, v report.Variant, step report.Step) {
	for _, m := range v.Remedies {
		if step.ID != framework.StepRemedy(m.ID).String() {
			continue
		}
		span.SetAttributes(attribute.String("relapse.remedy", m.Name), attribute.String("relapse.verdict", m.Verdict), attribute.String("relapse.expected", m.Expected))
		if m.TimeToRecoverMS != nil {
			span.SetAttributes(attribute.Int64("relapse.time_to_recover_ms", *m.TimeToRecoverMS))
		}
	}
}

// event adds a finding as an event. Findings of the baseline have no time of their own.
func event(span trace.Span, f report.Finding, otherwise time.Time) {
	at := otherwise
	if f.At != nil {
		at = *f.At
	}
	attributes := []attribute.KeyValue{
		attribute.String("relapse.detector", f.Detector), attribute.String("relapse.kind", f.Kind), attribute.String("relapse.state", string(f.State)),
		attribute.Stringer("relapse.object", f.Object), attribute.String("relapse.during", f.During), attribute.String("relapse.says", f.Says),
	}
	if f.TimeToDetectMS != nil {
		attributes = append(attributes, attribute.Int64("relapse.time_to_detect_ms", *f.TimeToDetectMS))
	}
	span.AddEvent("finding", trace.WithTimestamp(at), trace.WithAttributes(attributes...))
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
