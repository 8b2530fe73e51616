//go:build lab

package host

import "testing"

// TestLacks tries vxlan, which every kernel for containers has; what else a kernel has is printed.
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
	if _, err := Lacks("vlxan"); err == nil {
		t.Error("a kind that does not exist was tried")
	}
}
