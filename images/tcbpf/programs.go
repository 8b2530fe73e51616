package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sections of the programs that are attached: to the way into a node's card,
// and to the way out. The others' names are "MAP/KEY": where in a map of tail
// calls they belong.
const (
	fromNetdev = "from-netdev"
	toNetdev   = "to-netdev"
)

// callsID is the id of the map of tail calls (CILIUM_MAP_CALLS in
// bpf/lib/maps.h).
const callsID = "2"

// How the names of maps begin or end, that the vendor's headers, the sample
// ones too, give them.
const (
	callsMap     = "cilium_calls_"
	endpointsMap = "cilium_lxc"
	ipcacheMap   = "cilium_ipcache"
)

// programs are from-netdev and to-netdev of a bpf_host.o, loaded, with what they call. To-netdev is
// the one that masquerades pods' packets where the agent is told to leave that to BPF, and from-netdev
// is where the answers get the pods' addresses again.
//
// What loads and attaches them is in the place of tc and the vendor's fork of iproute2. Maps live for as
// long as the programs that look at them, and are not pinned but for that of tail calls (pin). What the
// agent's other parts would keep in them is not there, but for what know puts there.
type programs struct {
	from, to *ebpf.Program
	maps     map[string]*ebpf.Map
}

// maxEntries bounds the maps: the agent makes them for a whole node's traffic,
// and some are allocated at once.
const maxEntries = 1 << 14

// load hands what belongs to a node's card to the kernel, whose verifier may refuse it.
func load(path string) (*programs, error) {
	spec, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	for name, p := range spec.Programs {
		id, _, isCalled := strings.Cut(p.SectionName, "/")
		if p.SectionName != toNetdev && p.SectionName != fromNetdev && (!isCalled || id != callsID) {
			delete(spec.Programs, name) // cilium_host's
		}
		p.Type = ebpf.SchedCLS // iproute2 knows it from the command line
	}
	if err := errors.Join(rlimit.RemoveMemlock(), inlineData(spec)); err != nil {
		return nil, fmt.Errorf("preparing %s: %w", path, err)
	}
	for _, m := range spec.Maps {
		// What is beyond the kernel's own definition is for iproute2: where
		// to pin the map, and which tail calls are for it.
		m.Pinning, m.Extra = ebpf.PinNone, nil
		m.MaxEntries = min(m.MaxEntries, maxEntries)
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			err = fmt.Errorf("%w: %s", err, strings.Join(verifier.Log[max(0, len(verifier.Log)-5):], "; "))
		}
		return nil, fmt.Errorf("loading bpf_host.c: %w", err)
	}
	defer loaded.Close() // what is taken out of it stays
	p := &programs{maps: map[string]*ebpf.Map{}}
	for name, s := range spec.Programs {
		switch _, key, isCalled := strings.Cut(s.SectionName, "/"); {
		case isCalled:
			err = errors.Join(err, call(loaded, key, loaded.Programs[name]))
		case s.SectionName == fromNetdev:
			p.from = loaded.DetachProgram(name)
		default:
			p.to = loaded.DetachProgram(name)
		}
	}
	for name := range maps.Clone(loaded.Maps) {
		p.maps[name] = loaded.DetachMap(name)
	}
	if err == nil && (p.from == nil || p.to == nil) {
		err = fmt.Errorf("%s lacks one of the sections %s and %s", path, fromNetdev, toNetdev)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// call puts a program into the map of tail calls.
func call(loaded *ebpf.Collection, key string, program *ebpf.Program) error {
	var at uint32
	if _, err := fmt.Sscan(key, &at); err != nil {
		return fmt.Errorf("section %s/%s: %w", callsID, key, err)
	}
	for name, m := range loaded.Maps {
		if strings.Contains(name, callsMap) {
			if err := m.Put(at, program); err != nil {
				return fmt.Errorf("putting the program of section %s/%s into map %s: %w", callsID, key, name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no map %s for section %s/%s", callsMap, callsID, key)
}

// inlineData puts the values of the section .data, which the vendor's loader
// has written there for a device, in the place of their addresses: the
// vendor's C code takes an address for the value, and the vendor's iproute2
// keeps that promise.
func inlineData(spec *ebpf.CollectionSpec) error {
	const section = ".data"
	data := spec.Maps[section]
	if data == nil {
		return nil
	}
	if len(data.Contents) != 1 {
		return fmt.Errorf("section %s: %d values, want 1", section, len(data.Contents))
	}
	bytes, ok := data.Contents[0].Value.([]byte)
	if !ok {
		return fmt.Errorf("section %s is a %T", section, data.Contents[0].Value)
	}
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			at := &p.Instructions[i]
			if !at.IsLoadFromMap() || at.Reference() != section || at.Src != asm.PseudoMapValue {
				continue
			}
			offset := uint64(at.Constant) >> 32
			if offset+4 > uint64(len(bytes)) {
				return fmt.Errorf("section %s has no offset %d", section, offset)
			}
			value := spec.ByteOrder.Uint32(bytes[offset:])
			*at = asm.LoadImm(at.Dst, int64(value), asm.DWord).WithMetadata(at.Metadata).WithReference("")
		}
	}
	delete(spec.Maps, section)
	clear(spec.Variables) // all are in that section
	return nil
}

// pin keeps the map of tail calls in a folder of a BPF file system, in the
// place of that of programs that were attached to the same device before. The
// kernel empties such a map when no process holds it any more: the programs
// would stay and have nothing to call.
func (p *programs) pin(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("making the folder for maps: %w", err)
	}
	for name, m := range p.maps {
		if !strings.Contains(name, callsMap) {
			continue
		}
		path := filepath.Join(folder, name)
		next := path + "_next" // a BPF file system takes no dots
		if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
		if err := m.Pin(next); err != nil {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
		if err := os.Rename(next, path); err != nil {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
	return nil
}

// close gives the programs back. Where they are attached they stay.
func (p *programs) close() error {
	var errs []error
	for _, program := range []*ebpf.Program{p.from, p.to} {
		if program != nil {
			errs = append(errs, program.Close())
		}
	}
	for _, m := range p.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Keys of the agent's maps (bpf/lib/common.h, bpf/lib/maps.h), and the
// identity of all that is outside.
const (
	familyIPv4 = 1
	worldID    = 2
)

// endpointKey is the key of a pod in the map of endpoints (struct
// endpoint_key).
func endpointKey(m *ebpf.Map, pod netip.Addr) []byte {
	key := make([]byte, m.KeySize())
	copy(key, pod.AsSlice())
	key[16] = familyIPv4
	return key
}

// mapNamed is the map whose name ends with some text, nil if the programs look
// at no such map.
func (p *programs) mapNamed(suffix string) *ebpf.Map {
	for name, m := range p.maps {
		if strings.HasSuffix(name, suffix) {
			return m
		}
	}
	return nil
}

// know makes a pod of the node known to the programs, as the agent does.
func (p *programs) know(pod netip.Addr) error {
	m := p.mapNamed(endpointsMap)
	if m == nil {
		return nil
	}
	if err := m.Put(endpointKey(m, pod), make([]byte, m.ValueSize())); err != nil {
		return fmt.Errorf("making pod %s known: %w", pod, err)
	}
	return nil
}

// forget undoes know.
func (p *programs) forget(pod netip.Addr) error {
	m := p.mapNamed(endpointsMap)
	if m == nil {
		return nil
	}
	if err := m.Delete(endpointKey(m, pod)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forgetting pod %s: %w", pod, err)
	}
	return nil
}

// knowWorld tells the programs that all addresses are outside the cluster
// which nothing else is known about, as the agent does.
func (p *programs) knowWorld() error {
	m := p.mapNamed(ipcacheMap)
	if m == nil {
		return nil
	}
	key := make([]byte, m.KeySize()) // struct ipcache_key
	const before = 32                // bits of the key before the address, of which it has none
	binary.NativeEndian.PutUint32(key, before)
	key[7] = familyIPv4
	value := make([]byte, m.ValueSize()) // struct remote_endpoint_info
	binary.NativeEndian.PutUint32(value, worldID)
	if err := m.Put(key, value); err != nil {
		return fmt.Errorf("making the world known: %w", err)
	}
	return nil
}

// attach puts the programs on the ways into and out of a link, in the place
// of those that were there, as `tc filter replace dev LINK ingress bpf da`
// does in the vendor's loader.
func (p *programs) attach(h *netlink.Handle, link string) error {
	l, err := h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("attaching to %s: %w", link, err)
	}
	index := l.Attrs().Index
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	if err := h.QdiscReplace(qdisc); err != nil {
		return fmt.Errorf("attaching to %s: adding clsact: %w", link, err)
	}
	for _, way := range []struct {
		parent  uint32
		name    string
		program *ebpf.Program
	}{
		{netlink.HANDLE_MIN_INGRESS, fromNetdev, p.from},
		{netlink.HANDLE_MIN_EGRESS, toNetdev, p.to},
	} {
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: way.parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          way.program.FD(), Name: "bpf_host.o:[" + way.name + "]", DirectAction: true,
		}
		if err := h.FilterReplace(filter); err != nil {
			return fmt.Errorf("attaching %s to %s: %w", way.name, link, err)
		}
	}
	return nil
}
