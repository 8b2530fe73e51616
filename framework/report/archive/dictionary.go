package archive

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/report/schema"
)

// Dictionary has one replacement for each name and address of a cluster. First it collects names (Name,
// Snapshot, Text, JSON: their results are of no use then), then Choose chooses the replacements, and then
// the same methods replace.
//
// In a snapshot all words are replaced but numbers, versions, times and known words, so also names that nobody
// has thought of. In other texts only words are replaced that a snapshot, or Name, has named.
type Dictionary struct {
	names     map[string]string
	count     map[string]int // of names, by kind
	seen      map[netip.Prefix]bool
	addresses *addresses
	chosen    bool
}

// NewDictionary returns one that knows no name.
func NewDictionary() *Dictionary {
	return &Dictionary{names: map[string]string{}, count: map[string]int{}, seen: map[netip.Prefix]bool{}, addresses: newAddresses(nil)}
}

// Name adds names, which are replaced by KIND-x1 and so on, whatever they are.
func (d *Dictionary) Name(kind string, names ...string) {
	for _, name := range names {
		for _, word := range aName.FindAllString(name, -1) {
			d.add(kind, word)
		}
	}
}

// Words adds the words and addresses of texts that are no known words.
func (d *Dictionary) Words(kind string, texts ...string) {
	for _, text := range texts {
		d.strictly(text, kind, false)
	}
}

func (d *Dictionary) add(kind, word string) string {
	to, found := d.names[word]
	if !found && !d.chosen {
		d.count[kind]++
		to = fmt.Sprintf("%s-x%d", kind, d.count[kind])
		d.names[word] = to
	}
	return to
}

// tries is how many keys are tried until no replaced address equals one that is there: otherwise a replaced
// address could be taken for an original one.
const tries = 256

// Choose chooses the replacements. It returns how many addresses and names are replaced.
func (d *Dictionary) Choose() (addresses, names int, err error) {
	d.chosen = true
	names = len(d.names)
	for range tries {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never returns an error
		d.addresses = newAddresses(key)
		replaced, apart := d.replaced()
		if !apart {
			continue
		}
		for from, to := range replaced {
			for i, form := range forms(from) {
				if with := forms(to)[i]; form != "" && with != "" {
					d.names[form] = with
				}
			}
		}
		return len(replaced), names, nil
	}
	return 0, 0, errors.New("so much of its ranges is in use that no addresses are left to replace the others")
}

// replaced are the addresses with their replacements. apart is false if a replacement is an original address.
func (d *Dictionary) replaced() (all map[netip.Addr]netip.Addr, apart bool) {
	all = map[netip.Addr]netip.Addr{}
	for p := range d.seen {
		to := netip.PrefixFrom(d.addresses.to(p.Addr(), p.Bits()), p.Bits())
		switch {
		case stays(p):
		case d.seen[to]:
			return nil, false
		default:
			all[p.Addr()] = to.Addr()
		}
	}
	return all, true
}

// address maps an address, with the length after it, -1 for none. Before Choose it is noted.
func (d *Dictionary) address(a netip.Addr, bits int) netip.Addr {
	if d.chosen {
		return d.addresses.to(a, bits)
	}
	p, err := a.Prefix(bits)
	if err != nil || p.Addr() != a {
		p = netip.PrefixFrom(a, a.BitLen())
	}
	d.seen[p] = true
	return a
}

// Text returns a text with replacements, also in its encoded parts.
func (d *Dictionary) Text(text string) string {
	return scanner{d.address, d.addresses.mac, d.names}.text(text)
}

// Snapshot returns the JSON of a snapshot with replacements.
func (d *Dictionary) Snapshot(text []byte) []byte { return eachString(text, d.ofSnapshot) }

// JSON returns JSON with replacements. What is below the key "snapshot" is a snapshot.
func (d *Dictionary) JSON(text []byte) []byte {
	return eachString(text, func(at place, value string) string {
		switch {
		case slices.Contains(at.above, "snapshot"):
			return d.ofSnapshot(at, value)
		case at.isKey && schema.Properties()[value], !at.isKey && slices.Contains(states, at.key):
			return value
		case at.key == "pods" && !d.chosen && slices.Contains(at.above, "findings"):
			if namespace, name, both := strings.Cut(value, "/"); both {
				d.pod(namespace, name)
			}
		}
		return d.Text(value)
	})
}

func (d *Dictionary) pod(namespace, name string) {
	if !slices.Contains(wellKnown, namespace) {
		d.Name("namespace", namespace)
	}
	d.Name("pod", name)
}

// Values returns JSON with replacements in its values: its keys belong to a format.
func (d *Dictionary) Values(text []byte) []byte {
	return eachString(text, func(at place, value string) string {
		if at.isKey || slices.Contains(states, at.key) {
			return value
		}
		return d.Text(value)
	})
}

func (d *Dictionary) ofSnapshot(at place, value string) string {
	switch {
	case at.isKey && schema.Properties()[value]:
		return value
	case at.isKey:
		return d.strictly(value, "key", false)
	}
	kind := at.kind()
	return d.strictly(value, kind, slices.Contains(identities, kind))
}

// states are fields whose values belong to the format and stay, even if a node has the same name.
var states = []string{"role", "kind", "state", "form", "verdict", "expected", "detector",
	"schema", "scenario", "evidence", "protocol", "type", "origin"}

// kinds are the kinds of names by fields of snapshots, and lists the kinds of names in lists.
var (
	kinds = map[string]string{
		"node": "node", "nodes": "node", "ready_on": "node", "pod": "pod", "namespace": "namespace", "host": "host", "service": "service",
		"pool": "pool", "metallb_pool": "pool", "pod_pools": "pool", "service_account": "account",
		"owner_name": "workload", "chain": "rule", "comment": "rule",
	}
	lists = map[string]string{
		"nodes": "node", "cilium_nodes": "node", "pods": "pod", "pod_images": "pod", "routers": "router", "services": "service",
		"workloads": "workload", "accounts": "account", "calico_pools": "pool",
	}
	// identities are kinds whose names are replaced even if they are known words.
	identities = []string{"node", "pod", "namespace", "router", "host"}
)

func (p place) kind() string {
	if p.key != "name" {
		if kind := kinds[p.key]; kind != "" {
			return kind
		}
		return "name"
	}
	for _, key := range slices.Backward(p.above) {
		if key == "items" || key == "" {
			continue
		}
		if kind := lists[key]; kind != "" {
			return kind
		}
		break
	}
	return "name"
}

// Names that are the same everywhere: namespaces, and objects that many clusters have.
var wellKnown = []string{
	"default", "kube-system", "kube-public", "kube-node-lease", "local-path-storage", "calico-system", "calico-apiserver", "tigera-operator",
	"metallb-system", "cilium", "cilium-secrets", "kube-router", "kubernetes", "default-pool", "default-ipv4-ippool", "default-ipv6-ippool",
}

// knownText has the words of sources, states, protocols, vendors' components and errors.
//
//go:embed known.txt
var knownText string

var knownWords = func() map[string]bool {
	all := map[string]bool{}
	for _, word := range strings.Fields(knownText) {
		all[word] = true
	}
	return all
}()

// harmless are numbers, versions, durations, and times.
var (
	harmless = regexp.MustCompile(`^(?:\d+|0x[0-9a-f]+|v?\d+(?:\.\d+)+(?:-(?:rc|alpha|beta)[.\d]*)?` +
		`|v\d+(?:alpha\d+|beta\d+)?|(?:\d+(?:\.\d+)?(?:ns|us|ms|s|m|h))+)$`)
	aTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)`)
	// mention is how errors name machines: USER@HOST, what ssh connects to, hosts of URLs, and names that
	// are looked up.
	mention = regexp.MustCompile(`(?: -- |://|lookup |hostname |connect to host |can-reach=)` +
		`((?:[A-Za-z0-9._-]+@)?[A-Za-z][A-Za-z0-9._-]*)|([A-Za-z0-9._-]+@[A-Za-z0-9._-]+)`)
)

// isKnown reports whether a word says nothing of the cluster. One with dashes is known if its parts are.
func isKnown(word string) bool {
	if slices.Contains(wellKnown, word) || harmless.MatchString(word) || knownWords[strings.ToLower(word)] {
		return true
	}
	parts := strings.FieldsFunc(word, func(c rune) bool { return c == '-' || c == '_' || c == '.' })
	return len(parts) > 1 && !slices.ContainsFunc(parts, func(part string) bool { return !knownWords[strings.ToLower(part)] })
}

// strictly replaces all words of a text that are not known. In an identity well-known words alone stay.
func (d *Dictionary) strictly(text, kind string, identity bool) string {
	for _, found := range mention.FindAllStringSubmatch(text, -1) {
		if !strings.HasSuffix(found[2], "@sha256") { // an image by its digest
			d.Name("host", found[1], found[2])
		}
	}
	return scanner{ip: d.address, mac: d.addresses.mac}.each(text, func(from int) (end int, with string) {
		if t := aTime.FindString(text[from:]); t != "" {
			return from + len(t), t
		}
		end = ends(text, from)[0]
		word := text[from:end]
		if to := d.names[word]; to != "" {
			return end, to
		}
		if identity && slices.Contains(wellKnown, word) || !identity && isKnown(word) {
			return end, word
		}
		return end, d.add(kind, word)
	})
}
