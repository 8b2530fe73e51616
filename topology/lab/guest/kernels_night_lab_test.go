//go:build lab && night

package guest_test

import "github.com/relapse-dev/relapse/topology"

// kernels are those that guests are booted with.
var kernels = topology.Kernels
