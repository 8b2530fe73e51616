package main

import (
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/images"
)

func TestPrintPruned(t *testing.T) {
	for name, pruned := range map[string]images.Pruned{
		"prune-nothing": {Kept: 2e9},
		"prune-all":     {Images: []string{"", "quay.io/cilium/cilium:v1.11.6"}, Builds: 2, Freed: 123_456_789, Kept: 3_400_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			printPruned(&out, pruned)
			golden(t, name, out.String())
		})
	}
}
