//go:build lab

package bpfhost

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Mode is how BPF NodePort answers (node-port-mode).
type Mode string

// Modes of BPF NodePort.
const (
	SNAT   Mode = "snat"
	DSR    Mode = "dsr"
	Hybrid Mode = "hybrid"
)

// Config is what the agent would write into node_config.h (pkg/datapath/linux/config, WriteNodeConfig). The
// vendor's own sample headers, which it compiles its tests with, have the rest.
type Config struct {
	Mode Mode
	// Node is the address that pods are hidden behind.
	Node netip.Addr
	// NativeCIDR is native-routing-cidr: nothing in it is masqueraded.
	NativeCIDR netip.Prefix
}

// defines are the agent's, with enable-bpf-masquerade and BPF NodePort on and
// IPv6 off, on a kernel with all the map types that it looks for.
func (c Config) defines() []string {
	all := []string{
		"ENABLE_IPV4", "ENABLE_NODEPORT", "ENABLE_MASQUERADE", "ENABLE_EXTERNAL_IP", "SKIP_DEBUG",
		"HAVE_LPM_TRIE_MAP_TYPE", "HAVE_LRU_HASH_MAP_TYPE",
		"IPV4_NODEPORT=" + inMemory(c.Node), // 1.8
		"IPV4_MASQUERADE=" + inMemory(c.Node),
		"IPV4_SNAT_EXCLUSION_DST_CIDR=" + inMemory(c.NativeCIDR.Masked().Addr()),
		fmt.Sprintf("IPV4_SNAT_EXCLUSION_DST_CIDR_LEN=%d", c.NativeCIDR.Bits()),
	}
	if c.Mode != SNAT {
		all = append(all, "ENABLE_DSR")
	}
	if c.Mode == Hybrid {
		all = append(all, "ENABLE_DSR_HYBRID")
	}
	return all
}

// inMemory is an address as a number that has its bytes in network order.
func inMemory(a netip.Addr) string {
	bytes := a.As4()
	return fmt.Sprintf("%#x", binary.NativeEndian.Uint32(bytes[:]))
}

// Compile compiles bpf_host.c of the module of Cilium in a folder, as the
// agent does (pkg/datapath/loader/compile.go), into a folder of its own. It
// returns the object's path. It needs clang and llc; an error has what they
// said.
func Compile(ctx context.Context, module, into string, c Config) (string, error) {
	source := filepath.Join(module, "bpf")
	bitcode, object := filepath.Join(into, "bpf_host.bc"), filepath.Join(into, "bpf_host.o")
	clang := []string{
		"clang", "-O2", "-g", "-target", "bpf", "-std=gnu89", "-nostdinc", "-D__NR_CPUS__=2",
		"-Wno-everything", // what the vendor asks for are warnings of another version of clang
		"-I" + filepath.Join(source, "include"), "-I" + source,
	}
	for _, d := range c.defines() {
		clang = append(clang, "-D"+d)
	}
	for _, command := range [][]string{
		append(clang, "-emit-llvm", "-c", filepath.Join(source, "bpf_host.c"), "-o", bitcode),
		{"llc", "-march=bpf", "-mcpu=v2", "-filetype=obj", "-o", object, bitcode},
	} {
		if said, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("compiling bpf_host.c: %s: %w: %s", command[0], err, bytes.TrimSpace(said))
		}
	}
	return object, nil
}

// Translates tells whether to-netdev looks at the map of translations, or
// calls another program that may.
func (o Object) Translates() bool {
	return slices.ContainsFunc(o.Maps(), func(m string) bool {
		return strings.HasSuffix(m, snatMap) || strings.Contains(m, callsMap)
	})
}
