//go:build lab

package host

import (
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// TestLacks tries vxlan, which every kernel for containers has, and logs the other kinds.
func TestLacks(t *testing.T) {
	for _, kind := range []string{"vxlan", "geneve", "wireguard", "ipip", "netkit", "xfrm"} {
		lacks, err := Lacks(kind)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if lacks && kind == "vxlan" {
			t.Error("the kernel lacks vxlan")
		}
		t.Logf("the kernel lacks %s: %t", kind, lacks)
	}
	must.Fail(t, must.Err(Lacks("vlxan"))) // a kind that does not exist is not tried
}
