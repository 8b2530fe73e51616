package suite

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// ImagesOf names every image that must be built for some variants of a scenario, each
// once: the lab's own, and what its registry serves. With the vendors' own images
// (upstream) only ours are built.
func ImagesOf(s framework.Scenario, upstream bool, variants ...framework.Variant) []string {
	refs := kindlab.ImagesOf(s.Topology)
	for _, v := range variants {
		refs = append(refs, v.Images...)
	}
	if upstream {
		refs = slices.DeleteFunc(refs, func(ref string) bool { return !kindlab.Ours(ref) })
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// MissingImages are the images of a scenario that have no recipe: known reports which
// have one. Variants that run only with the vendors' own images need none.
func MissingImages(s framework.Scenario, known func(ref string) bool) []string {
	missing := slices.DeleteFunc(kindlab.ImagesOf(s.Topology), known)
	for _, v := range s.Variants {
		if v.OnlyUpstream == "" {
			missing = append(missing, slices.DeleteFunc(slices.Clone(v.Images), known)...)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}
