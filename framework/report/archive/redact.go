package archive

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Declared is what a scenario says of addresses and names.
type Declared struct {
	Topology *report.Topology
	// Texts are those in which it says addresses and ranges.
	Texts []string
}

// ScenarioChangedError says that a scenario is not the one by which a run's addresses
// and names were replaced.
type ScenarioChangedError struct{ Scenario string }

func (e *ScenarioChangedError) Error() string {
	return fmt.Sprintf("addresses and names of the run were replaced, and that can only be undone with the topology that %s had then", e.Scenario)
}

// Restore returns what puts a scenario's own addresses and names back into JSON in which
// they were replaced. The error is a *ScenarioChangedError where it is another scenario.
func Restore(m report.Manifest, d Declared) (func([]byte) []byte, error) {
	salt, err := hex.DecodeString(m.Redaction.Salt)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: its salt %q is no hexadecimal number", m.Redaction.Salt)
	}
	a := addressesOf(d, salt)
	if m.Redaction.Check != a.check() {
		return nil, &ScenarioChangedError{m.Scenario}
	}
	s := scanner{
		ip:    byLength(a.from),
		mac:   func(m [6]byte) [6]byte { return m },
		words: index{},
	}
	for name, in := range membersOf(d.Topology, m.Redaction.Mark) {
		s.words.add(in, name)
	}
	return func(text []byte) []byte { return s.json(text, keepsKey) }, nil
}

// addressesOf are those in place of others, where a salt and a declaration say so.
func addressesOf(d Declared, salt []byte) *addresses {
	a := &addresses{private: make([]byte, 32), known: map[walked]netip.Addr{}}
	found := map[netip.Prefix]bool{}
	look := scanner{
		ip: func(addr netip.Addr, bits int) netip.Addr {
			most := flippedBits(addr)
			if bits < 0 || bits > most {
				bits = most // an address stands for its neighbours
			}
			if p, err := addr.Prefix(bits); err == nil {
				found[p] = true
			}
			return addr
		},
		mac: func(m [6]byte) [6]byte { return m },
	}
	declaration, _ := json.Marshal(d.Topology) // plain data, which cannot fail
	for _, text := range append([]string{string(declaration)}, d.Texts...) {
		look.plain(text)
	}
	// One that holds a well-known range would make all there is public.
	maps.DeleteFunc(found, func(p netip.Prefix, _ bool) bool {
		return slices.ContainsFunc(slices.Concat(whole, heads), func(w netip.Prefix) bool { return p.Bits() <= w.Bits() && p.Overlaps(w) })
	})
	a.declared = slices.SortedFunc(maps.Keys(found), func(x, y netip.Prefix) int { return x.Compare(y) })
	a.public = sum(salt, append(declaration, fmt.Sprint(a.declared)...))
	return a
}

// check is the same for the same keys and ranges.
func (a *addresses) check() string { return hex.EncodeToString(sum(a.public, []byte("check"))[:8]) }

// byLength maps an address, and of a range that stands as such only its own bits.
func byLength(to func(netip.Addr) netip.Addr) func(netip.Addr, int) netip.Addr {
	return func(a netip.Addr, bits int) netip.Addr {
		if own, err := a.Prefix(bits); err == nil && own.Addr() == a {
			mapped, _ := to(a).Prefix(bits) // as many bits as a has
			return mapped.Addr()
		}
		return to(a)
	}
}

// membersOf are the names in place of a topology's members, by kind and place.
func membersOf(t *report.Topology, mark string) map[string]string {
	names, number := map[string]string{}, map[string]int{}
	if t == nil {
		return names
	}
	for _, m := range t.Members {
		number[m.Kind]++
		names[m.Name] = fmt.Sprintf("%s-%s%d", m.Kind, mark, number[m.Kind])
	}
	return names
}

// wellKnown are namespaces that are the same everywhere.
var wellKnown = []string{
	"", "default", "kube-system", "kube-public", "kube-node-lease", "local-path-storage",
	"calico-system", "tigera-operator", "metallb-system", "cilium-secrets",
}

// redactor replaces what is in a run's folder.
type redactor struct {
	pods       map[string]bool
	nodes      map[string]bool // that no topology names
	namespaces map[string]bool
	addresses  map[string]netip.Prefix // as they are written; one that stands alone with all its bits
	taken      map[string]bool         // marks that names of the run look like
	scanner
}

// redact writes the run in a folder to another one, with other addresses and names.
func redact(dir, to string, r report.Report, o Options) (*report.Redaction, []report.LeftOut, error) {
	paths, err := filesOf(dir)
	if err != nil {
		return nil, nil, err
	}
	x := &redactor{pods: map[string]bool{}, nodes: map[string]bool{}, namespaces: map[string]bool{}, addresses: map[string]netip.Prefix{}, taken: map[string]bool{}}
	var left []report.LeftOut
	var readable []string
	for _, name := range paths {
		switch text, err := x.collect(dir, name); {
		case err != nil:
			return nil, nil, err
		case !text:
			p := packer{}
			if err := p.add(dir, name); err != nil {
				return nil, nil, err
			}
			left = append(left, report.LeftOut{Packed: p.members[0].Packed, Why: "it is no text, in which names could be replaced"})
		case name != page.Name && name != junit.Name: // rendered anew
			readable = append(readable, name)
		}
	}
	d := o.Declared
	if d.Topology == nil {
		d.Topology = r.Topology
	}
	for _, v := range r.Variants {
		for _, f := range v.Findings {
			x.foundIn(f.Pods)
		}
	}
	redaction, err := x.choose(d, r, o.Machine)
	if err != nil {
		return nil, nil, err
	}
	for i := range left {
		left[i].Path = x.path(left[i].Path)
	}
	for _, name := range readable {
		if err := x.write(dir, name, to); err != nil {
			return nil, nil, err
		}
	}
	redacted, err := report.Read(filepath.Join(to, "report.json"))
	if err == nil && slices.Contains(paths, junit.Name) {
		err = junit.Write(junit.InFolder(to), redacted)
	}
	return redaction, left, errors.Join(err, page.Write(to))
}

// collect notes what there is to replace in a file. Text is whether it can be.
func (x *redactor) collect(dir, name string) (text bool, err error) {
	look := scanner{ip: x.seen, mac: func(m [6]byte) [6]byte { return m }}
	if path.Ext(name) == ".zst" {
		return true, eachLine(filepath.Join(dir, filepath.FromSlash(name)), func(line []byte) error {
			var entry struct {
				Look struct {
					Snapshot snapshot.Snapshot `json:"snapshot"`
					Findings []struct {
						Pods []string `json:"pods"`
					} `json:"findings"`
				} `json:"look"`
			}
			if err := json.Unmarshal(line, &entry); err != nil {
				return fmt.Errorf("reading %s: %w", name, err)
			}
			x.objects(entry.Look.Snapshot)
			for _, f := range entry.Look.Findings {
				x.foundIn(f.Pods)
			}
			x.lookAlikes(string(line))
			look.json(line, func(string) bool { return false })
			return nil
		})
	}
	content, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil || bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content) {
		return false, err
	}
	x.mentions(string(content))
	if path.Ext(name) != ".json" {
		look.text(string(content))
		return true, nil
	}
	var s snapshot.Snapshot
	if schema.Of(name) == "snapshot" && json.Unmarshal(content, &s) == nil {
		x.objects(s)
	}
	look.json(content, func(string) bool { return false })
	return true, nil
}

func (x *redactor) seen(a netip.Addr, bits int) netip.Addr {
	p, err := a.Prefix(bits)
	if err != nil || p.Addr() != a {
		p = netip.PrefixFrom(a, a.BitLen())
	}
	x.addresses[p.String()] = p
	return a
}

func (x *redactor) objects(s snapshot.Snapshot) {
	n := s.Names()
	maps.Copy(x.nodes, n.Nodes)
	maps.Copy(x.pods, n.Pods)
	maps.Copy(x.namespaces, n.Namespaces)
}

// foundIn notes pods of a finding, as namespace/name.
func (x *redactor) foundIn(pods []string) {
	for _, pod := range pods {
		if namespace, name, both := strings.Cut(pod, "/"); both {
			x.namespaces[namespace], x.pods[name] = true, true
		}
	}
}

// Where programs name pods, and names that look like those that replace others.
var (
	podMentions = []*regexp.Regexp{
		regexp.MustCompile(`\bpods?\\?"?[=:] ?\[?\\?"([a-z0-9-]+)/([a-z0-9.-]+)\\?"`),
		regexp.MustCompile(`/var/log/pods/([a-z0-9-]+)_([a-z0-9.-]+)_`),
		regexp.MustCompile(`PodSandbox for ()name:\\*"([a-z0-9.-]+)\\*"`),
	}
	replacing = regexp.MustCompile(`\b(?:host|router|node|pod|namespace|machine)-([a-z])[0-9]+\b`)
)

func (x *redactor) mentions(text string) {
	for _, e := range podMentions {
		for _, m := range e.FindAllStringSubmatch(text, -1) {
			x.namespaces[m[1]], x.pods[m[2]] = true, true
		}
	}
	x.lookAlikes(text)
}

// marks are letters that may stand before the number of a name that replaces another.
const marks = "xyzwvqkj"

// lookAlikes notes which marks a text has in names that look as if they replaced others.
func (x *redactor) lookAlikes(text string) {
	for _, m := range marks {
		if strings.Contains(text, "-"+string(m)+"1") && slices.ContainsFunc(replacing.FindAllStringSubmatch(text, -1), func(found []string) bool { return found[1] == string(m) }) {
			x.taken[string(m)] = true
		}
	}
}

// tries is how many salts are tried for one by which no address is another's that the
// run has as well: nobody is to take a replaced one for one that was left.
const tries = 256

// choose decides what replaces what.
func (x *redactor) choose(d Declared, r report.Report, machine string) (*report.Redaction, error) {
	mark := ""
	for _, m := range marks {
		if mark == "" && !x.taken[string(m)] {
			mark = string(m)
		}
	}
	if mark == "" {
		return nil, errors.New("all names that could replace others are in use")
	}
	x.words = index{}
	names := membersOf(d.Topology, mark)
	number := func(prefix string, all []string) {
		n := 0
		for _, name := range all {
			if _, there := names[name]; name != "" && !there {
				for n++; slices.Contains(slices.Collect(maps.Values(names)), fmt.Sprintf("%s-%s%d", prefix, mark, n)); n++ {
				}
				names[name] = fmt.Sprintf("%s-%s%d", prefix, mark, n)
			}
		}
	}
	if r.Topology != nil { // where the catalogue does not have the scenario any more
		for _, m := range r.Topology.Members {
			number(m.Kind, []string{m.Name})
		}
	}
	number("node", slices.Sorted(maps.Keys(x.nodes)))
	number("pod", slices.Sorted(maps.Keys(x.pods)))
	for _, name := range wellKnown {
		delete(x.namespaces, name)
	}
	number("namespace", slices.Sorted(maps.Keys(x.namespaces)))
	number("machine", []string{machine})
	for from, to := range names {
		x.words.add(from, to)
	}
	for range tries {
		salt := make([]byte, 16)
		_, _ = rand.Read(salt) // it never returns an error
		a := addressesOf(d, salt)
		_, _ = rand.Read(a.private) // before anything is looked up by it
		x.ip, x.mac = byLength(a.to), a.mac
		replaced, apart := x.replaced()
		if !apart {
			continue
		}
		for from, to := range replaced {
			for i, form := range forms(from) {
				if with := forms(to)[i]; form != "" && with != "" {
					x.words.add(form, with)
				}
			}
		}
		return &report.Redaction{
			Salt: hex.EncodeToString(salt), Check: a.check(), Mark: mark, Addresses: len(replaced), Names: len(names),
		}, nil
	}
	return nil, errors.New("the run has so many addresses of its ranges that no others are left to replace them")
}

// replaced are the addresses of the run with what is in their place. Apart is whether
// none of these is one that the run has.
func (x *redactor) replaced() (all map[netip.Addr]netip.Addr, apart bool) {
	all = map[netip.Addr]netip.Addr{}
	own := func(p netip.Prefix) bool { // nobody else's
		return slices.ContainsFunc(whole, func(w netip.Prefix) bool { return w.Overlaps(p) }) ||
			slices.ContainsFunc(heads, func(h netip.Prefix) bool { return p.Bits() <= h.Bits() && p.Overlaps(h) })
	}
	for _, p := range x.addresses {
		to := netip.PrefixFrom(x.ip(p.Addr(), p.Bits()), p.Bits())
		switch _, taken := x.addresses[to.String()]; {
		case own(p):
		case taken:
			return nil, false
		default:
			all[p.Addr()] = to.Addr()
		}
	}
	return all, true
}

// forms are other ways to write an IPv4 address: with dashes as in names of the DNS, as
// numbers in both byte orders, and as bytes, as in C.
func forms(a netip.Addr) []string {
	if !a.Is4() {
		return nil
	}
	b := a.As4()
	forth := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	back := uint32(b[3])<<24 | uint32(b[2])<<16 | uint32(b[1])<<8 | uint32(b[0])
	all := []string{fmt.Sprintf("%d-%d-%d-%d", b[0], b[1], b[2], b[3])}
	for _, n := range []uint32{forth, back} {
		if n < 1<<24 { // it may be a port, or anything else that is counted
			all = append(all, "", "", "", "")
			continue
		}
		all = append(all, fmt.Sprintf("0x%x", n), fmt.Sprintf("0x%08x", n), fmt.Sprintf("%08x", n), fmt.Sprint(n))
	}
	for _, layout := range []string{"0x%x, 0x%x, 0x%x, 0x%x", "0x%x,0x%x,0x%x,0x%x"} {
		all = append(all, fmt.Sprintf(layout, b[0], b[1], b[2], b[3]))
	}
	return all
}

// keepsKey tells whether a key is one of a format. A map's keys are data.
func keepsKey(key string) bool { return schema.Properties()[key] }

// path is a file's with other names in it. Its folders are those of variants.
func (x *redactor) path(name string) string {
	folder, base := path.Split(name)
	return folder + x.plain(base)
}

// write writes a file of the run to another folder.
func (x *redactor) write(dir, name, to string) error {
	from, target := filepath.Join(dir, filepath.FromSlash(name)), filepath.Join(to, filepath.FromSlash(x.path(name)))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if path.Ext(name) == ".zst" {
		return x.writeRecord(from, target)
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if path.Ext(name) == ".json" {
		text = x.json(text, keepsKey)
	} else {
		text = []byte(x.text(string(text)))
	}
	return os.WriteFile(target, text, 0o644)
}

func (x *redactor) writeRecord(from, to string) (err error) {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out, err := zstd.NewWriter(file, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return eachLine(from, func(line []byte) error {
		_, err := out.Write(append(x.json(line, keepsKey), '\n'))
		return err
	})
}

// eachLine gives each whole line of a compressed file to a function. What a killed
// process has not finished is left out.
func eachLine(path string, do func([]byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	in, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	defer in.Close()
	lines := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if err := do(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
	}
}
