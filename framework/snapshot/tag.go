package snapshot

import (
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/mod/semver"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology/each"
)

// Tag is what the registry has under the name of an image.
type Tag struct {
	Image string `json:"image"` // as it was written
	// Digest is the one that a pull at this moment would bring.
	Digest string `json:"digest,omitempty"`
	// Error says why the registry did not answer.
	Error string `json:"error,omitempty"`
}

// Tags is the source of what the registry has under the name of each image that is referred to
// without a digest, in order of image. It reads Workloads and RunningImages for the names.
var Tags = Source{kind: register(kind{
	name: "tags",
	open: func(o *opening, _ []string) (read, error) {
		registry, err := o.access.Registry(o.ctx)
		if err != nil {
			return nil, err
		}
		o.closes(registry)
		c, err := o.cluster()
		return func(ctx context.Context, s *Snapshot) { s.Tags = c.tags(ctx, registry) }, err
	},
	copy: func(to, from *Snapshot, _ []string) { to.Tags = from.Tags },
	parts: func(s Snapshot) []part {
		all := each.Of(s.Tags.Items, func(t Tag) part {
			return part{what: "the registry's " + t.Image, read: t.Error == "", why: t.Error, state: t.state}
		})
		if s.Tags.Error != "" {
			all = append(all, part{what: "the names of images", why: s.Tags.Error})
		}
		return all
	},
})}

func (t Tag) state(to *statements) {
	if t.Error == "" {
		to.add(Agent, "registry", t.Image, "", "%s", t.Digest)
	}
}

// Reference is the name of an image, taken apart.
type Reference struct {
	// Name is host and path. Tag and Digest are empty where the reference has none.
	Name, Tag, Digest string
}

// ParseReference takes the name of an image apart, without filling in
// defaults. What no runtime would accept as a name is an error.
func ParseReference(image string) (Reference, error) {
	// Kubelets with dockershim put "docker-pullable://" in front of an image ID.
	if _, rest, ok := strings.Cut(image, "://"); ok {
		image = rest
	}
	parsed, err := reference.Parse(image)
	if err != nil {
		return Reference{}, fmt.Errorf("image %q: %w", image, err)
	}
	var r Reference
	if named, ok := parsed.(reference.Named); ok {
		r.Name = named.Name()
	}
	if tagged, ok := parsed.(reference.Tagged); ok {
		r.Tag = tagged.Tag()
	}
	if digested, ok := parsed.(reference.Digested); ok {
		r.Digest = digested.Digest().String()
	}
	return r, nil
}

// IsOf reports whether it is an image of a program, by the end of its project's own name, such as cilium/cilium. Rancher and Bitnami
// write hyphens in the place of slashes: own is false for their builds.
func (r Reference) IsOf(program string) (matches, own bool) {
	hyphens := strings.ReplaceAll(program, "/", "-")
	base := strings.TrimPrefix(strings.TrimPrefix(path.Base(r.Name), "mirrored-"), "hardened-")
	own = strings.HasSuffix("/"+r.Name, "/"+program)
	return own || base == hyphens, own
}

// candidate is what follows the version in the tag of a release candidate. Other words stand for builds of others.
var candidate = regexp.MustCompile(`^-(rc|pre|alpha|beta|snapshot)`)

// Version is the semantic version that a tag states, without the words of who has built it; own reports that there are
// none. Empty: the tag states none.
func Version(tag string) (version string, own bool) {
	tag = "v" + strings.TrimPrefix(tag, "v")
	words := semver.Prerelease(tag)
	if candidate.MatchString(words) {
		words = ""
	}
	words += semver.Build(tag)
	if tag = strings.TrimSuffix(tag, words); semver.Canonical(tag) != tag {
		return "", false
	}
	return tag[1:], words == ""
}

const maxResolving = 8

// tags asks a registry for each image that is referred to without a digest.
func (c *cluster) tags(ctx context.Context, registry Registry) List[Tag] {
	began := time.Now()
	workloads, err := c.workloads(ctx)
	pods, err2 := c.podImages(ctx)
	images := map[string]bool{}
	note := func(c Container) {
		if ref, err := ParseReference(c.Image); err == nil && ref.Digest == "" {
			images[c.Image] = true
		}
	}
	for _, w := range workloads {
		for _, c := range w.Containers {
			note(c)
		}
	}
	for _, p := range pods {
		for _, c := range p.Containers {
			note(c.Container)
		}
	}
	l := List[Tag]{Read: true, Items: each.Of(slices.Sorted(maps.Keys(images)), func(image string) Tag { return Tag{Image: image} })}
	if err := failures(err, err2); err != nil {
		l.Read, l.Error = false, err.Error()
	}
	var all errgroup.Group
	all.SetLimit(maxResolving)
	for i := range l.Items {
		tag := &l.Items[i]
		all.Go(func() (err error) {
			if tag.Digest, err = registry.Resolve(ctx, tag.Image); err != nil {
				tag.Digest, tag.Error = "", err.Error()
			}
			return nil
		})
	}
	_ = all.Wait() // each error is its tag's
	l.Took = time.Since(began)
	return l
}
