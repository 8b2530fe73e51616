//go:build lab && night

package guest_test

import (
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestEveryGuest boots a guest with each kernel by QEMU, and one by User Mode Linux. The
// one that labs get on this machine is left to TestGuest.
func TestEveryGuest(t *testing.T) {
	docker, image := dockerAndImage(t, topology.Kernels[0])
	usual := must.Get(guest.ChooseAccelerator(t.Context(), docker, image, nil, filepath.Join(t.TempDir(), "accelerator")))(t)
	for _, kernel := range topology.Kernels {
		t.Run(kernel, func(t *testing.T) {
			docker, image := dockerAndImage(t, kernel)
			accelerator := launch.KVM
			why := must.Get(guest.WhyNot(t.Context(), docker, image, nil, launch.KVM))(t)
			if why != "" {
				t.Log(why)
				accelerator = launch.TCG
			}
			if kernel == topology.Kernels[0] && accelerator == usual.Accelerator {
				t.Skip("it is TestGuest's")
			}
			testGuest(t, docker, image, accelerator, "node1 "+kernel+".")
		})
	}
	t.Run("User Mode Linux", func(t *testing.T) {
		if usual.Accelerator == launch.UML {
			t.Skip("it is TestGuest's")
		}
		why := must.Get(guest.WhyNot(t.Context(), docker, image, nil, launch.UML))(t)
		if why != "" {
			t.Skip(why)
		}
		testGuest(t, docker, image, launch.UML, "node1 ")
	})
}
