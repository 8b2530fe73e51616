package qualify

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/metallb"
)

// adaptMetalLB fills in what follows from both charts of MetalLB and the user's values.
func (v *Values) adaptMetalLB(ctx context.Context, from, to *chart.Chart, users map[string]any) error {
	at := func(c *chart.Chart) metallb.Release { return metallb.Release{Version: c.Version, Values: users} }
	v.BGP = metallb.ModeOf(at(from), at(to))
	if v.BGP == metallb.FRRK8s {
		return metallb.NoFRRK8s()
	}
	v.lab, v.Replaced = metallb.Adapt(users, from.Version, to.Version)
	users, err := v.withoutVariables(from, to, users)
	if err != nil {
		return err
	}
	if err := v.unread(ctx, from, to, users); err != nil {
		return err
	}
	before, err := metalLBOf(from, users, false)
	if err != nil {
		return v.wrong(err)
	}
	v.rendered = Charts{ConfigMap: "controller and speaker", From: len(before), Changes: []Change{}, Defaults: []Effective{}}
	after, err := metalLBOf(to, users, true)
	if refused, ok := errors.AsType[*chart.RefusedError](err); ok {
		v.rendered.Refused = refused.Why
		return nil
	}
	if err != nil {
		return v.wrong(err)
	}
	v.rendered.To = len(after)
	v.rendered.compare(before, after, users, nil)
	// A chart may also refuse a value that only the lab has.
	for _, c := range []*chart.Chart{from, to} {
		if _, err := metalLBOf(c, v.lab, c == to); err != nil {
			return v.wrong(fmt.Errorf("with what the lab replaces: %w", err))
		}
	}
	return nil
}

// metalLBOf are the settings of MetalLB's programs that a chart renders: arguments, environment, and files of FRR.
func metalLBOf(c *chart.Chart, values map[string]any, upgrade bool) (map[string]string, error) {
	rendered, err := c.Render(release(c, values, upgrade))
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	add := func(spec corev1.PodSpec) {
		for _, c := range spec.Containers {
			for _, arg := range c.Args {
				flag, value, _ := strings.Cut(arg, "=")
				settings[c.Name+" "+flag] = value
			}
			for _, e := range c.Env {
				value := e.Value
				if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
					value = "the field " + e.ValueFrom.FieldRef.FieldPath
				}
				settings[c.Name+" "+e.Name] = value
			}
		}
	}
	for _, o := range rendered.Objects {
		var err error
		switch o.GetKind() {
		case "DaemonSet", "Deployment": // both have spec.template
			var set appsv1.DaemonSet
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &set)
			add(set.Spec.Template.Spec)
		case "ConfigMap":
			var files corev1.ConfigMap
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &files)
			for file, text := range files.Data {
				for line := range strings.Lines(text) {
					key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
					if ok && !strings.HasPrefix(key, "#") {
						settings[file+" "+key] = strings.Join(strings.Fields(strings.Trim(value, `"`)), " ")
					}
				}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s %s of the chart of %s %s: %w", o.GetKind(), o.GetName(), c.Name, c.Version, err)
		}
	}
	return settings, nil
}
