package render

import (
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// family is a metric: its name, its help text and its unit, which may be empty.
type family struct{ name, help, unit string }

// gauges are the values of metrics, which are written in the order of their families.
type gauges struct {
	order []family
	by    map[string]*dto.MetricFamily
	seen  map[string]bool
}

func newGauges(families []family) gauges {
	g := gauges{families, map[string]*dto.MetricFamily{}, map[string]bool{}}
	for _, f := range families {
		g.by[f.name] = &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: dto.MetricType_GAUGE.Enum()}
		if f.unit != "" {
			g.by[f.name].Unit = &f.unit
		}
	}
	return g
}

// add adds a value, with labels as name and value in turn. A series counts once: its first value stays.
func (g gauges) add(name string, value float64, labels ...string) {
	series := fmt.Sprintf("%s %q", name, labels)
	if g.seen[series] {
		return
	}
	g.seen[series] = true
	m := &dto.Metric{Gauge: &dto.Gauge{Value: &value}}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	g.by[name].Metric = append(g.by[name].Metric, m)
}

// write writes the metrics that have values, as OpenMetrics text.
func (g gauges) write(out io.Writer) error {
	for _, f := range g.order {
		if len(g.by[f.name].Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToOpenMetrics(out, g.by[f.name], expfmt.WithUnit()); err != nil {
			return fmt.Errorf("encoding the metric %s: %w", f.name, err)
		}
	}
	_, err := expfmt.FinalizeOpenMetrics(out)
	return err
}
