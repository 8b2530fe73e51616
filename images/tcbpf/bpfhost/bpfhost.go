// Package bpfhost loads the BPF programs that Cilium attaches to a node's
// network card, and compiles them for a test: from-netdev and to-netdev of
// bpf/bpf_host.c, with what they call. To-netdev is the one that masquerades
// pods' packets where the agent is told to leave that to BPF, and from-netdev
// is where the answers get the pods' addresses again. The source is the
// vendor's, unmodified, from the module of a version.
//
// The agent slices of the scenario bring objects that the vendor's code has
// compiled, against headers that the vendor's code has written from the
// ConfigMap (images/cilium/rules/datapath). Compile is for objects without an
// agent: there the vendor's own sample headers take their place, which it
// compiles its tests with, and what matters is defined as the agent would
// (pkg/datapath/linux/config, WriteNodeConfig): see Config.
//
// What loads and attaches is this package, in the place of tc and the vendor's
// fork of iproute2. Maps live for as long as the programs that look at them, and
// are not pinned but for that of tail calls (Pin). What the agent's other parts would keep in them is not
// there, but for what Know puts there.
package bpfhost

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
)

// Mode is how BPF NodePort answers (node-port-mode).
type Mode string

// Modes of BPF NodePort.
const (
	SNAT   Mode = "snat"
	DSR    Mode = "dsr"
	Hybrid Mode = "hybrid"
)

// Config is what the agent would write into node_config.h.
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
