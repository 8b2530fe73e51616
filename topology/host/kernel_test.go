package host

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWithoutServiceMap(t *testing.T) {
	err := withoutServiceMap(unix.EOPNOTSUPP)
	const want = "kube-proxy in mode nftables needs maps of addresses and ports to verdicts, and numgen, in the kernel's nf_tables (found: operation not supported): " +
		"run it on a machine with Linux 5.13 or newer and nf_tables, or in mode iptables, or in mode ipvs, which runs on guests with kernels of their own"
	if _, ok := errors.AsType[*UnfitError](err); !ok || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
