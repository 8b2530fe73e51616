package archive

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
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
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Declared are the addresses and names that a scenario declares.
type Declared struct {
	Topology *report.Topology
	Texts    []string // that contain its addresses and ranges
}

// ScenarioChangedError says that the scenario has changed since a run's addresses and
// names were replaced.
type ScenarioChangedError struct{ Scenario string }

func (e *ScenarioChangedError) Error() string {
	return fmt.Sprintf("addresses and names of the run were replaced; this can only be undone with the topology that %s had then", e.Scenario)
}

// Restore returns a function that restores a scenario's own addresses and names in JSON in
// which they were replaced. The error is a *ScenarioChangedError if the scenario has
// changed.
func Restore(m report.Manifest, d Declared) (func([]byte) []byte, error) {
	salt, err := hex.DecodeString(m.Redaction.Salt)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: its salt %q is not a hexadecimal number", m.Redaction.Salt)
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

// addressesOf makes the map of addresses that follows from a salt and a declaration.
func addressesOf(d Declared, salt []byte) *addresses {
	a := &addresses{private: make([]byte, 32), known: map[walked]netip.Addr{}}
	found := map[netip.Prefix]bool{}
	declarations := scanner{
		ip: func(addr netip.Addr, bits int) netip.Addr {
			most := flippedBits(addr)
			if bits < 0 || bits > most {
				bits = most // neighbours of a declared address count as declared
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
		declarations.plain(text)
	}
	// A range that contains a well-known range would make all addresses public.
	maps.DeleteFunc(found, func(p netip.Prefix, _ bool) bool {
		return slices.ContainsFunc(slices.Concat(whole, heads), func(w netip.Prefix) bool { return p.Bits() <= w.Bits() && p.Overlaps(w) })
	})
	a.declared = slices.SortedFunc(maps.Keys(found), func(x, y netip.Prefix) int { return x.Compare(y) })
	a.public = sum(salt, append(declaration, fmt.Sprint(a.declared)...))
	return a
}

// check is a hash of the public key and the ranges.
func (a *addresses) check() string { return hex.EncodeToString(sum(a.public, []byte("check"))[:8]) }

// byLength maps an address, or the leading bits of a range.
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
	"calico-system", "calico-apiserver", "tigera-operator", "metallb-system", "cilium", "cilium-secrets", "kube-router",
}

// WellKnown are the namespaces that are the same in many clusters, whose names are not replaced.
func WellKnown() []string { return slices.Clone(wellKnown) }

// redactor replaces what is in a run's folder.
type redactor struct {
	pods       map[string]bool
	nodes      map[string]bool // that are in no topology
	namespaces map[string]bool
	addresses  map[string]netip.Prefix // by their text; one without a length has all its bits
	taken      map[string]bool         // marks that cannot be used: names of the run have them
	scanner
}

func newRedactor() *redactor {
	return &redactor{pods: map[string]bool{}, nodes: map[string]bool{}, namespaces: map[string]bool{}, addresses: map[string]netip.Prefix{}, taken: map[string]bool{}}
}

// redact writes the run in a folder to another folder, with addresses and names replaced.
func redact(run *rundir.Folder, to string, r report.Report, o Options) (*report.Redaction, []report.LeftOut, error) {
	paths, err := filesOf(run)
	if err != nil {
		return nil, nil, err
	}
	target, err := rundir.Open(to)
	if err != nil {
		return nil, nil, err
	}
	defer target.Close()
	x := newRedactor()
	var left []report.LeftOut
	var readable []string
	for _, name := range paths {
		switch text, err := x.collect(run, name); {
		case err != nil:
			return nil, nil, err
		case !text:
			p := packer{}
			if err := p.add(run, name); err != nil {
				return nil, nil, err
			}
			left = append(left, report.LeftOut{Packed: p.members[0].Packed, Why: "not a text file: names in it cannot be replaced"})
		case name != page.Name && name != junit.Name: // which are rendered from the redacted report
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
		if err := x.write(run, name, target); err != nil {
			return nil, nil, err
		}
	}
	redacted, err := report.Read(filepath.Join(to, "report.json"))
	if err == nil && slices.Contains(paths, junit.Name) {
		err = junit.Write(junit.InFolder(to), redacted)
	}
	return redaction, left, errors.Join(err, page.Write(to, nil))
}

// collect notes what is to be replaced in a file. Text is false if it is not a text file.
func (x *redactor) collect(run *rundir.Folder, name string) (text bool, err error) {
	contents := scanner{ip: x.seen, mac: func(m [6]byte) [6]byte { return m }}
	if path.Ext(name) == ".zst" {
		return true, run.Lines(name, func(line []byte) (bool, error) {
			var entry struct {
				Poll struct {
					Snapshot snapshot.Snapshot `json:"snapshot"`
					Findings []struct {
						Pods []string `json:"pods"`
					} `json:"findings"`
				} `json:"poll"`
			}
			if err := json.Unmarshal(line, &entry); err != nil {
				return false, &rundir.UnsafeError{Path: name, Why: err.Error()}
			}
			x.objects(entry.Poll.Snapshot)
			for _, f := range entry.Poll.Findings {
				x.foundIn(f.Pods)
			}
			x.lookAlikes(string(line))
			contents.json(line, func(string) bool { return false })
			return true, nil
		})
	}
	content, err := run.ReadFile(name)
	if err != nil || bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content) {
		return false, err
	}
	x.mentions(string(content))
	if path.Ext(name) != ".json" {
		contents.text(string(content))
		return true, nil
	}
	var s snapshot.Snapshot
	if schema.Of(name) == "snapshot" && json.Unmarshal(content, &s) == nil {
		x.objects(s)
	}
	contents.json(content, func(string) bool { return false })
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

// How programs write the names of pods, and what replacement names look like.
var (
	podMentions = []*regexp.Regexp{
		regexp.MustCompile(`\bpods?\\?"?[=:] ?\[?\\?"([a-z0-9-]+)/([a-z0-9.-]+)\\?"`),
		regexp.MustCompile(`/var/log/pods/([a-z0-9-]+)_([a-z0-9.-]+)_`),
		regexp.MustCompile(`PodSandbox for ()name:\\*"([a-z0-9.-]+)\\*"`),
	}
	replacing = regexp.MustCompile(`\b(?:host|router|node|pod|namespace|machine|service|workload|account|pool|object|rule)-([a-z])[0-9]+\b`)
)

func (x *redactor) mentions(text string) {
	for _, e := range podMentions {
		for _, m := range e.FindAllStringSubmatch(text, -1) {
			x.namespaces[m[1]], x.pods[m[2]] = true, true
		}
	}
	x.lookAlikes(text)
}

// marks are the letters that can precede the number in a replacement name.
const marks = "xyzwvqkj"

// lookAlikes notes the marks of names in a text that look like replacement names.
func (x *redactor) lookAlikes(text string) {
	for _, m := range marks {
		if strings.Contains(text, "-"+string(m)+"1") && slices.ContainsFunc(replacing.FindAllStringSubmatch(text, -1), func(found []string) bool { return found[1] == string(m) }) {
			x.taken[string(m)] = true
		}
	}
}

// tries is how many salts are tried until no replaced address equals one that the run
// has: otherwise a replaced address could be taken for an original one.
const tries = 256

// choose chooses the replacements of all names and addresses.
func (x *redactor) choose(d Declared, r report.Report, machine string) (*report.Redaction, error) {
	mark := ""
	for _, m := range marks {
		if mark == "" && !x.taken[string(m)] {
			mark = string(m)
		}
	}
	if mark == "" {
		return nil, errors.New("the run already contains all possible replacement names")
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
	if r.Topology != nil { // members that the catalogue's topology does not have
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
		_, _ = rand.Read(a.private) // before the first lookup
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
	return nil, errors.New("the run uses so much of its ranges that no addresses are left to replace the others")
}

// replaced are the addresses of the run with their replacements. Apart is whether the run
// has none of the replacements itself.
func (x *redactor) replaced() (all map[netip.Addr]netip.Addr, apart bool) {
	all = map[netip.Addr]netip.Addr{}
	kept := func(p netip.Prefix) bool {
		return slices.ContainsFunc(whole, func(w netip.Prefix) bool { return w.Overlaps(p) }) ||
			slices.ContainsFunc(heads, func(h netip.Prefix) bool {
				// Of an address of documentation nothing may change.
				return p.Overlaps(h) && (p.Bits() <= h.Bits() || h.Bits() >= flippedBits(h.Addr()))
			})
	}
	for _, p := range x.addresses {
		to := netip.PrefixFrom(x.ip(p.Addr(), p.Bits()), p.Bits())
		switch _, taken := x.addresses[to.String()]; {
		case kept(p):
		case taken:
			return nil, false
		default:
			all[p.Addr()] = to.Addr()
		}
	}
	return all, true
}

// forms are other ways to write an address: with dashes as in names of the DNS, and with underscores
// as in those of BIRD's protocols; one of IPv4 also as numbers in both byte orders, and as bytes, as in C.
func forms(a netip.Addr) []string {
	if !a.Is4() {
		var all []string
		for _, text := range []string{a.String(), a.StringExpanded()} {
			if strings.HasPrefix(text, ":") { // a word begins with a letter or a digit
				text = ""
			}
			all = append(all, strings.ReplaceAll(text, ":", "-"), strings.ReplaceAll(text, ":", "_"))
		}
		return all
	}
	b := a.As4()
	forth := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	back := uint32(b[3])<<24 | uint32(b[2])<<16 | uint32(b[1])<<8 | uint32(b[0])
	all := []string{fmt.Sprintf("%d-%d-%d-%d", b[0], b[1], b[2], b[3]), fmt.Sprintf("%d_%d_%d_%d", b[0], b[1], b[2], b[3])}
	for _, n := range []uint32{forth, back} {
		if n < 1<<24 { // it may be a port or a counter
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

// keepsKey reports whether a key is a field of a format. Keys of a map are data.
func keepsKey(key string) bool { return schema.Properties()[key] }

// path is the path of a file with names replaced in its last element. Its folders have the
// names of variants, which stay.
func (x *redactor) path(name string) string {
	folder, base := path.Split(name)
	return folder + x.plain(base)
}

// write writes a file of the run to another folder.
func (x *redactor) write(run *rundir.Folder, name string, to *rundir.Folder) error {
	if path.Ext(name) == ".zst" {
		return x.writeRecord(run, name, to)
	}
	text, err := run.ReadFile(name)
	if err != nil {
		return err
	}
	if path.Ext(name) == ".json" {
		text = x.json(text, keepsKey)
	} else {
		text = []byte(x.text(string(text)))
	}
	return to.Replace(x.path(name), text)
}

func (x *redactor) writeRecord(run *rundir.Folder, name string, to *rundir.Folder) error {
	return to.ReplaceWith(x.path(name), func(file io.Writer) error {
		out, err := zstd.NewWriter(file, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		err = run.Lines(name, func(line []byte) (bool, error) {
			_, err := out.Write(append(x.json(line, keepsKey), '\n'))
			return true, err
		})
		return errors.Join(err, out.Close())
	})
}
