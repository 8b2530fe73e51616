package main

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/relapse-dev/relapse/images"
)

func TestPrintPruned(t *testing.T) {
	digest := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)}
	for name, test := range map[string]struct {
		pruned images.Pruned
		keep   int64
	}{
		"prune-nothing": {images.Pruned{Kept: 2e9}, 10e9},
		"prune-all": {images.Pruned{
			Images: []images.PrunedImage{
				{Ref: "relapse.dev/tor:dev", Digest: digest},
				{Ref: "quay.io/cilium/cilium:v1.11.6", Digest: digest, Used: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Bytes: 123_456_789},
			},
			Builds: 2, Kept: 3_400_000_000,
		}, 1e9},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			printPruned(&out, test.pruned, test.keep)
			golden(t, name, out.String())
		})
	}
}
