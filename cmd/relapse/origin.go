package main

import (
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Sources of the vendors' images: the values of --images.
const (
	imagesAuto     = "auto"
	imagesBuild    = "build"
	imagesUpstream = "upstream" // of run alone
)

// origin are the flags that say where the vendors' images come from.
type origin struct {
	source  string
	mirrors map[string]string // of vendors' registries, by host
}

func (o *origin) register(flags *pflag.FlagSet, besides string) {
	flags.StringVar(&o.source, "images", imagesAuto, "where the vendors' images come from: auto takes those of the lab's control plane from the vendors' registries, if these answer, by pinned digests; build"+besides)
	flags.StringToStringVar(&o.mirrors, "upstream", nil, "without --images=build: a mirror for a vendor's registry, `HOST=URL`")
}

// upstreams are the registries of the vendors' images; none if all images are built.
func (o origin) upstreams() (registry.Upstreams, error) {
	if o.source == imagesBuild {
		if len(o.mirrors) > 0 {
			return nil, usagef("--upstream is not for --images=build")
		}
		return nil, nil
	}
	from, err := registry.NewUpstreams(o.mirrors)
	if err != nil {
		return nil, usagef("--upstream: %w", err)
	}
	return from, nil
}

// vendors are asked for images of the lab's control plane; nil: nobody is.
func (o origin) vendors() (*suite.Vendors, error) {
	if o.source != imagesAuto && o.source != imagesBuild {
		return nil, usagef("--images: %q: expected %s or %s", o.source, imagesAuto, imagesBuild)
	}
	from, err := o.upstreams()
	if from == nil || err != nil {
		return nil, err
	}
	return suite.NewVendors(from), nil
}

// open adds what a run needs of the flags to its options: of run, which also takes upstream.
func (o origin) open(s *suite.Options) (err error) {
	switch o.source {
	case imagesAuto, imagesBuild:
		s.Vendors, err = o.vendors()
	case imagesUpstream:
		s.VendorsImages = true
		s.Upstreams, err = o.upstreams()
	default:
		err = usagef("--images: %q: expected %s, %s or %s", o.source, imagesAuto, imagesBuild, imagesUpstream)
	}
	return err
}

// words are the flags that were set, for a command that goes on.
func (o origin) words() []string {
	var words []string
	if o.source == imagesBuild {
		words = append(words, "--images", o.source)
	}
	for _, host := range slices.Sorted(maps.Keys(o.mirrors)) {
		words = append(words, "--upstream", host+"="+o.mirrors[host])
	}
	return words
}
