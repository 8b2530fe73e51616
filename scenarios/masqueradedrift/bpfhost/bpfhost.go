// Package bpfhost compiles and loads the BPF program that Cilium attaches to
// the way out of a node's network card, to-netdev in bpf/bpf_host.c: the one
// that masquerades pods' packets where the agent is told to leave that to BPF.
// The source is the vendor's, unmodified, from the module of a version.
//
// The agent generates node_config.h and netdev_config.h for each node and
// compiles against them. Here the vendor's own sample headers take their place,
// which it compiles its tests with; what matters is defined as the agent would
// (pkg/datapath/linux/config, WriteNodeConfig): see Config. The agent's other
// programs are not loaded, and nothing but what the package puts there is in
// the program's maps.
package bpfhost

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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

// snatMap is the map of translations, by the name that the sample headers give
// it. Who masquerades uses it.
const snatMap = "test_cilium_snat_v4_external"

// Spec is to-netdev as it was compiled.
type Spec struct {
	program *ebpf.ProgramSpec
	maps    map[string]*ebpf.MapSpec
}

// Read reads to-netdev from an object.
func Read(object string) (Spec, error) {
	all, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return Spec{}, fmt.Errorf("reading %s: %w", object, err)
	}
	for _, p := range all.Programs {
		if p.SectionName != "to-netdev" {
			continue
		}
		s := Spec{program: p, maps: map[string]*ebpf.MapSpec{}}
		for _, i := range p.Instructions {
			if m, ok := all.Maps[i.Reference()]; ok {
				s.maps[i.Reference()] = m
			}
		}
		return s, nil
	}
	return Spec{}, fmt.Errorf("reading %s: there is no section to-netdev", object)
}

// Instructions is how many the program has. Two are enough to let every packet
// pass as it is.
func (s Spec) Instructions() int { return len(s.program.Instructions) }

// Masquerades tells whether the program looks at the map of translations at
// all.
func (s Spec) Masquerades() bool { return s.maps[snatMap] != nil }

// Program is to-netdev, loaded.
type Program struct {
	program *ebpf.Program
	maps    map[string]*ebpf.Map
}

// maxEntries bounds the maps: the agent makes them for a whole node's traffic,
// and some are allocated at once.
const maxEntries = 1024

// Load hands the program to the kernel, whose verifier may refuse it.
func (s Spec) Load() (*Program, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lifting the limit of locked memory: %w", err)
	}
	p := &Program{maps: map[string]*ebpf.Map{}}
	for name, m := range s.maps {
		m = m.Copy()
		// What is beyond the kernel's own definition is for iproute2: where
		// to pin the map. Nothing is pinned.
		m.Pinning, m.Extra = ebpf.PinNone, nil
		m.MaxEntries = min(m.MaxEntries, maxEntries)
		made, err := ebpf.NewMap(m)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("creating map %s: %w", name, err), p.Close())
		}
		p.maps[name] = made
	}
	spec := s.program.Copy()
	spec.Type = ebpf.SchedCLS // iproute2 knows it from the command line
	for name, m := range p.maps {
		if err := spec.Instructions.AssociateMap(name, m); err != nil {
			return nil, errors.Join(fmt.Errorf("giving to-netdev map %s: %w", name, err), p.Close())
		}
	}
	var err error
	if p.program, err = ebpf.NewProgram(spec); err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			err = fmt.Errorf("%s", strings.Join(verifier.Log[max(0, len(verifier.Log)-5):], "; "))
		}
		return nil, errors.Join(fmt.Errorf("loading to-netdev: %w", err), p.Close())
	}
	return p, nil
}

// Close gives the program back. Where it is attached it stays.
func (p *Program) Close() error {
	var errs []error
	if p.program != nil {
		errs = append(errs, p.program.Close())
	}
	for _, m := range p.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Keys of the agent's maps (bpf/lib/common.h, bpf/lib/maps.h), by the names
// that the sample headers give those, and the identity of all that is outside.
const (
	endpointsMap = "test_cilium_lxc"
	ipcacheMap   = "test_cilium_ipcache"
	familyIPv4   = 1
	worldID      = 2
)

// Know makes a pod of the node known to the program, and addresses outside
// the cluster, as the agent does. A program that does not look at them has no
// such maps.
func (p *Program) Know(pod netip.Addr, world ...netip.Addr) error {
	if m := p.maps[endpointsMap]; m != nil {
		key := make([]byte, m.KeySize()) // struct endpoint_key
		copy(key, pod.AsSlice())
		key[16] = familyIPv4
		if err := m.Put(key, make([]byte, m.ValueSize())); err != nil {
			return fmt.Errorf("making pod %s known: %w", pod, err)
		}
	}
	m := p.maps[ipcacheMap]
	if m == nil {
		return nil
	}
	for _, a := range world {
		key := make([]byte, m.KeySize()) // struct ipcache_key
		const before = 32                // bits of the key before the address
		binary.NativeEndian.PutUint32(key, uint32(before+a.BitLen()))
		key[7] = familyIPv4
		copy(key[8:], a.AsSlice())
		value := make([]byte, m.ValueSize()) // struct remote_endpoint_info
		binary.NativeEndian.PutUint32(value, worldID)
		if err := m.Put(key, value); err != nil {
			return fmt.Errorf("making %s known: %w", a, err)
		}
	}
	return nil
}

// Attach puts the program on the way out of a link, as `tc filter replace dev
// LINK egress bpf da` does in the vendor's init.sh.
func (p *Program) Attach(h *netlink.Handle, link string) error {
	l, err := h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("attaching to-netdev to %s: %w", link, err)
	}
	index := l.Attrs().Index
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	if err := h.QdiscReplace(qdisc); err != nil {
		return fmt.Errorf("attaching to-netdev to %s: adding clsact: %w", link, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
		},
		Fd: p.program.FD(), Name: "to-netdev", DirectAction: true,
	}
	if err := h.FilterReplace(filter); err != nil {
		return fmt.Errorf("attaching to-netdev to %s: %w", link, err)
	}
	return nil
}

// Maps names the maps that the program looks at.
func (s Spec) Maps() []string {
	var names []string
	for name := range s.maps {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
