package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Vendors are the registries from which a run takes images that are not under test, by their
// pinned digests. What cannot be taken is built: a registry fails no run. It must not be used
// concurrently.
type Vendors struct {
	from registry.Upstreams
	// silent are the hosts that did not answer, or not to the end. They are not asked again.
	silent map[string]bool
}

// NewVendors makes the Vendors of one run.
func NewVendors(from registry.Upstreams) *Vendors { return &Vendors{from, map[string]bool{}} }

// NotUnderTest are those of a scenario's images that may be the vendors' own: of the lab's
// control plane, if no variant names them. What variants name may be under test, or decide a
// verdict.
func NotUnderTest(s framework.Scenario, refs []string) []string {
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool {
		named := func(v framework.Variant) bool { return slices.Contains(v.Images, ref) }
		return !kindlab.OfCluster(ref) || slices.ContainsFunc(s.Variants, named)
	})
}

// take returns those of refs, which are not under test, that the cache holds as the vendors
// publish them. Those that it holds in no form, and that are pinned, are taken before.
func (v *Vendors) take(ctx context.Context, from Images, refs []string, p engine.Progress) (map[string]images.Published, error) {
	pinned := slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { _, there := from.Pin(ref); return !there })
	held, err := from.Published(pinned)
	if err != nil {
		return nil, err
	}
	missing, err := from.Unbuilt(ctx, slices.DeleteFunc(pinned, func(ref string) bool { _, there := held[ref]; return there }))
	if err != nil || len(missing) == 0 {
		return held, err
	}
	if err := v.fetch(ctx, from, missing, p); err != nil {
		return nil, err
	}
	taken, err := from.Published(missing)
	maps.Copy(held, taken)
	return held, err
}

// fetch puts pinned images into the cache. Progress gets why others are built. The error is
// that of ctx.
func (v *Vendors) fetch(ctx context.Context, from Images, refs []string, p engine.Progress) error {
	digests := map[string]string{}
	for _, ref := range refs {
		host, err := registry.HostOf(ref)
		if pin, _ := from.Pin(ref); err == nil && !v.silent[host] {
			digests[ref] = pin.String()
		}
	}
	failed := v.from.Ask(ctx, digests)
	maps.DeleteFunc(digests, func(ref, _ string) bool { return failed[ref] != nil })
	var mu sync.Mutex // guards failed
	var downloads sync.WaitGroup
	for ref, digest := range digests {
		downloads.Go(func() {
			var err error
			defer func() {
				if p := recover(); p != nil { // the image is built
					err = fmt.Errorf("downloading it panicked: %v", p)
				}
				mu.Lock()
				defer mu.Unlock()
				failed[ref] = err
			}()
			err = v.download(ctx, from, ref, digest, p)
		})
	}
	downloads.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	v.note(failed, p)
	return nil
}

// download takes one image.
func (v *Vendors) download(ctx context.Context, from Images, ref, digest string, p engine.Progress) error {
	at, err := v.from.At(ref, digest)
	if err != nil {
		return err
	}
	s := await.Sight{What: ref, Saw: "downloading from " + at.RegistryStr(), Began: time.Now()}
	p.Waits(ImagesScope, s)
	err = from.Take(ctx, ref, at)
	s.Over = true
	p.Waits(ImagesScope, s)
	if err == nil {
		p.Note(ImagesScope, fmt.Sprintf("%s taken from %s by its digest", ref, at.RegistryStr()))
	}
	return err
}

// note says why images are built, once for each reason, and which hosts are not asked again.
func (v *Vendors) note(failed map[string]error, p engine.Progress) {
	concerned := map[string][]string{} // images, by reason
	for _, ref := range slices.Sorted(maps.Keys(failed)) {
		err := failed[ref]
		if err == nil {
			continue
		}
		host, _ := registry.HostOf(ref) // it was read before
		reason := fmt.Sprintf("the registry %s: %v", v.from[host], err)
		var vendor *registry.UpstreamError
		var stalled *images.StalledError
		switch {
		case errors.As(err, &vendor) && vendor.Image != "":
			reason = fmt.Sprintf("the registry %s: %v", v.from[host], vendor.Err)
		case errors.As(err, &vendor):
			reason = fmt.Sprintf("the registry of %s, %s, cannot be reached: %v", host, v.from[host], vendor.Err)
			v.silent[host] = true
		case errors.As(err, &stalled):
			v.silent[host] = true
		}
		concerned[reason] = append(concerned[reason], ref)
	}
	for _, reason := range slices.Sorted(maps.Keys(concerned)) {
		p.Note(ImagesScope, fmt.Sprintf("built here: %s: %s", strings.Join(concerned[reason], ", "), reason))
	}
}
