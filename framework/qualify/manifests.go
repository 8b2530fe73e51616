package qualify

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/objects"
)

// CheckManifests checks a user's objects against the types of both versions, as an API server does. It downloads the
// vendor's modules. It returns the objects without fields that the old version lacks, and a clause for each field that
// a version lacks and for each refusal by the new version. If the old version refuses, the error is a *InputError.
func CheckManifests(ctx context.Context, component, from, to, text string) (manifests string, notes []string, err error) {
	if component != "metallb" && (component != "cilium" || bisect.Compare(from, labvalues.First) < 0) {
		return text, nil, nil
	}
	old, err := typesOf(ctx, component, from)
	if err != nil {
		return "", nil, err
	}
	new, err := typesOf(ctx, component, to)
	if err != nil {
		return "", nil, err
	}
	all, err := objects.Read(text)
	if err != nil {
		return "", nil, &InputError{err}
	}
	var documents []string
	for _, o := range all {
		name := objects.Name(o)
		after := new.Prune(o.DeepCopy())
		before := old.Prune(o)
		if wrong := before.Refused; len(wrong) > 0 {
			for _, field := range before.Unknown {
				wrong = append(wrong, "there is no field "+field)
			}
			return "", nil, &InputError{fmt.Errorf("%s: the API server refuses it with %s %s: %s", name, component, from, strings.Join(wrong, "; "))}
		}
		tell := func(format string, args ...any) { notes = append(notes, name+": "+fmt.Sprintf(format, args...)) }
		served := old.Served(o)
		switch version := o.GetAPIVersion(); {
		case len(served) == 0 || slices.Contains(served, version):
		case component == "cilium": // its API versions have the same fields
			tell("%s %s does not serve %s: the lab has it as %s", component, from, version, served[len(served)-1])
		default:
			expected := "expected " + strings.Join(served, " or ")
			return "", nil, &InputError{fmt.Errorf("%s: %s %s does not serve %s: %s", name, component, from, version, expected)}
		}
		if len(before.Unknown) > 0 {
			tell("left out: %s %s has no field %s: kubectl refuses the object, "+
				"and the API server drops the field from other clients", component, from, strings.Join(before.Unknown, ", "))
		}
		if lost := slices.DeleteFunc(after.Unknown, func(f string) bool { return slices.Contains(before.Unknown, f) }); len(lost) > 0 {
			tell("%s %s does not have the field %s: the API server drops it", component, to, strings.Join(lost, ", "))
		}
		if len(after.Refused) > 0 {
			tell("the API server refuses it with %s %s: %s", component, to, strings.Join(after.Refused, "; "))
		}
		document, err := yaml.Marshal(o.Object)
		if err != nil {
			return "", nil, err
		}
		documents = append(documents, string(document))
	}
	return strings.Join(documents, "---\n"), notes, nil
}

// typesOf are a component's own types at a version: from MetalLB's chart, or from the source of Cilium's operator.
func typesOf(ctx context.Context, component, version string) (objects.Types, error) {
	c, err := published.Of(ctx, component, version)
	if err != nil {
		return nil, err
	}
	if component == "metallb" {
		rendered, err := c.Render(release(c, nil, false))
		return objects.TypesOf(append(rendered.Objects, rendered.CRDs...)), err
	}
	var all []unstructured.Unstructured
	files, err := filepath.Glob(filepath.Join(c.Module, "pkg/k8s/apis/cilium.io/client/crds/*/*.yaml"))
	for _, file := range files {
		var o unstructured.Unstructured
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, &o.Object)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the types of Cilium %s: %w", version, err)
		}
		all = append(all, o)
	}
	return objects.TypesOf(all), err
}
