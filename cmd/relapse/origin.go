package main

import (
	"github.com/spf13/pflag"

	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Sources of the vendors' images: the values of --images.
const (
	imagesBuild    = "build"
	imagesUpstream = "upstream"
)

type origin struct {
	source  string
	mirrors map[string]string // of vendors' registries, by host
}

func (o *origin) register(flags *pflag.FlagSet) {
	flags.StringVar(&o.source, "images", imagesBuild,
		"where the vendors' images come from: build; or upstream, which takes all through a cache in the lab")
	flags.StringToStringVar(&o.mirrors, "upstream", nil, "with --images=upstream: a mirror for a vendor's registry, `HOST=URL`")
}

func (o origin) upstreams() (registry.Upstreams, error) {
	switch {
	case o.source == imagesBuild && len(o.mirrors) > 0:
		return nil, usagef("--upstream is for --images=upstream alone")
	case o.source == imagesBuild:
		return nil, nil
	case o.source != imagesUpstream:
		return nil, usagef("--images: %q: expected %s or %s", o.source, imagesBuild, imagesUpstream)
	}
	from, err := registry.NewUpstreams(o.mirrors)
	if err != nil {
		return nil, usagef("--upstream: %w", err)
	}
	return from, nil
}
