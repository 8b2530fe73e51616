//go:build lab && !night

package guest_test

import "github.com/relapse-dev/relapse/topology"

// kernels are those that guests are booted with: of each QEMU takes a minute.
var kernels = topology.Kernels[:1]
