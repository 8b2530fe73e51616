package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// ranImages lists which images the pods ran. wrong says which image of the variant is not the image that was built
// under its name, or why that is unknown. Other images, such as the vendors' own (--images=upstream), are listed only.
func (j *Judge) ranImages(part history.StepView) (wrong string) {
	act, _, read := part.Act(history.Images, "")
	switch {
	case !read:
		return "which images the pods ran is not on record"
	case act.Error != "":
		return "which images the pods ran is unknown: " + act.Error
	}
	if j.Result.Running, wrong = compareImages(act.Images, j.Variant.Images, j.Images); wrong != "" {
		return wrong
	}
	tested := j.tested()
	if len(tested) > 0 && !slices.ContainsFunc(act.Images, func(i snapshot.ImageInUse) bool { return tested[i.Digest] != "" }) {
		return fmt.Sprintf("no pod ran an image under test: %s", strings.Join(slices.Sorted(maps.Values(tested)), ", "))
	}
	return ""
}

// tested are the images that were built for the variant with a version under test as tag: references, by digest.
func (j *Judge) tested() map[string]string {
	tested := map[string]string{}
	versions := slices.Collect(maps.Values(j.Variant.Components))
	for _, ref := range j.Variant.Images {
		named, err := reference.ParseNormalizedNamed(ref)
		tagged, ok := named.(reference.Tagged)
		if err == nil && ok && j.Images[ref] != "" && slices.Contains(versions, strings.TrimPrefix(tagged.Tag(), "v")) {
			tested[j.Images[ref]] = ref
		}
	}
	return tested
}

// compareImages compares the digests that nodes have pulled with the digests that were built (by reference), for the
// repositories of a variant's images. Other variants may run other tags of these repositories at the same time. A
// reference without a tag that was built must lead to an image that was built for its repository.
func compareImages(inUse []snapshot.ImageInUse, ofVariant []string, built map[string]string) (running []report.RunningImage, wrong string) {
	concerned := map[string]bool{}
	for _, ref := range ofVariant {
		if named, err := reference.ParseNormalizedNamed(ref); err == nil {
			concerned[named.Name()] = true
		}
	}
	digests, repositories := map[string]string{}, map[string][]string{}
	for ref, digest := range built {
		if named, err := reference.ParseNormalizedNamed(ref); err == nil && concerned[named.Name()] {
			digests[reference.TagNameOnly(named).String()] = digest
			repositories[named.Name()] = append(repositories[named.Name()], digest)
		}
	}
	for _, image := range inUse {
		var allowed []string
		if named, err := reference.ParseNormalizedNamed(image.Image); err == nil {
			allowed = slices.Sorted(slices.Values(repositories[named.Name()]))
			if digest, found := digests[reference.TagNameOnly(named).String()]; found {
				allowed = []string{digest}
			}
		}
		entry := report.RunningImage{Image: image.Image, Digest: image.Digest, Containers: image.Containers}
		entry.Built = slices.Contains(allowed, image.Digest)
		running = append(running, entry)
		switch {
		case len(allowed) == 0 || entry.Built || wrong != "":
		case image.Digest == "":
			wrong = fmt.Sprintf("whether %s is the image that was built is unknown: a node does not report the digest", image.Image)
		default:
			wrong = fmt.Sprintf("%s has the digest %s on a node; built: %v", image.Image, image.Digest, allowed)
		}
	}
	return running, wrong
}
