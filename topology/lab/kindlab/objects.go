package kindlab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

type object struct {
	resource        schema.GroupVersionResource
	namespace, name string
	uid             types.UID
	owners          []metav1.OwnerReference
	byPeople        bool
}

func (o object) String() string {
	return strings.TrimPrefix(fmt.Sprintf("%s/%s %s/%s", o.resource.Group, o.resource.Resource, o.namespace, o.name), "/")
}

// passing are resources whose objects come and go by themselves.
var passing = []string{"events", "endpoints", "endpointslices", "componentstatuses", "apiservices"}

func (c *Cluster) list(ctx context.Context) ([]object, error) {
	config := c.Client.RESTConfig()
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("listing the objects of cluster %q: %w", c.Name, err)
	}
	reader, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("listing the objects of cluster %q: %w", c.Name, err)
	}
	lists, err := kinds.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("listing the types of cluster %q: %w", c.Name, err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists)
	var all []object
	for _, l := range lists {
		group, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("listing the types of cluster %q: %w", c.Name, err)
		}
		for _, r := range l.APIResources {
			if slices.Contains(passing, r.Name) {
				continue
			}
			resource := group.WithResource(r.Name)
			items, err := reader.Resource(resource).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // the type was deleted a moment ago
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("listing %s of cluster %q: %w", resource.Resource, c.Name, err)
			}
			all = append(all, each.Of(items.Items, func(i metav1.PartialObjectMetadata) object {
				return object{resource, i.Namespace, i.Name, i.UID, i.OwnerReferences, byPeople(i.ManagedFields)}
			})...)
		}
	}
	return all, nil
}

func (c *Cluster) objects(ctx context.Context) (map[string]bool, error) {
	all, err := c.list(ctx)
	names := map[string]bool{}
	for _, o := range all {
		names[o.String()] = true
	}
	return names, err
}

// goneWithin bounds how long objects take to go: pods end within their grace period, which is
// 30 s unless they say otherwise.
const goneWithin = 2 * time.Minute

// tools are the beginnings of the field managers of tools with which people apply objects.
var tools = []string{"kubectl", "helm", "Helm", "argocd", "kustomize-controller", "source-controller", "terraform", "Terraform", "pulumi"}

// byPeople reports whether one of these tools has written an object, and not relapse.
func byPeople(fields []metav1.ManagedFieldsEntry) (found bool) {
	for _, f := range fields {
		if f.Manager == "relapse" {
			return false
		}
		found = found || slices.ContainsFunc(tools, func(tool string) bool { return strings.HasPrefix(f.Manager, tool) })
	}
	return found
}

// madeByKnown are the known objects, the objects that people have made meanwhile, and all objects that one of
// these owns, directly or not, such as the pods of a user's Deployment. Objects that a Node owns do not count: an
// agent has made them.
func madeByKnown(all []object, earlier map[string]bool) map[types.UID]bool {
	there := map[types.UID]bool{}
	for more := true; more; {
		more = false
		for _, o := range all {
			owned := slices.ContainsFunc(o.owners, func(r metav1.OwnerReference) bool { return r.Kind != "Node" && there[r.UID] })
			if !there[o.uid] && (earlier[o.String()] || o.byPeople || owned) {
				there[o.uid], more = true, true
			}
		}
	}
	return there
}

// deleteOthers deletes the objects that are not among madeByKnown, and waits until they are gone. Types go
// with all of their objects.
func (c *Cluster) deleteOthers(ctx context.Context, earlier map[string]bool) error {
	writer, err := metadata.NewForConfig(c.Client.RESTConfig())
	if err != nil {
		return fmt.Errorf("deleting objects of cluster %q: %w", c.Name, err)
	}
	return await.Until(ctx, "the objects that were not there before to go", 500*time.Millisecond, goneWithin,
		func(ctx context.Context) (bool, string, error) {
			all, err := c.list(ctx)
			if err != nil {
				return false, "", err
			}
			left, stay := 0, madeByKnown(all, earlier)
			var last object
			var errs []error
			var others []string
			for _, o := range all {
				if stay[o.uid] {
					if o.byPeople && !earlier[o.String()] {
						others = append(others, o.String())
					}
					continue
				}
				left, last = left+1, o
				background := metav1.DeletePropagationBackground
				err := writer.Resource(o.resource).Namespace(o.namespace).Delete(ctx, o.name, metav1.DeleteOptions{PropagationPolicy: &background})
				if err != nil && !apierrors.IsNotFound(err) {
					errs = append(errs, fmt.Errorf("deleting %s: %w", o, err))
				}
			}
			if left == 0 && len(others) > 0 {
				c.lab.log.Warn("objects that others have made meanwhile stay", "objects", strings.Join(others, ", "))
			}
			return left == 0, fmt.Sprintf("%d are there, such as %s", left, last), errors.Join(errs...)
		})
}
