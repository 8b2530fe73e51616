package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
		// Continue and RemainingItemCount are set in each page of a list but the last.
		Continue           string `json:"continue"`
		RemainingItemCount int64  `json:"remainingItemCount"`
	} `json:"metadata"`
}

// objectBegins matches the beginning of a file that may have objects.
var objectBegins = regexp.MustCompile(`(?m)^(- |  )?(apiVersion|kind|items):|\A\s*(---\s)?\s*[[{](?s:.*)"(apiVersion|items)"\s*:`)

// utf8Of converts a text to UTF-8 by its byte order mark: PowerShell writes UTF-16.
func utf8Of(text []byte) []byte {
	if len(text) == 0 || text[0] < 0xef { // each byte order mark begins with 0xef or more
		return text
	}
	decoded, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), text)
	if err != nil {
		return text
	}
	return decoded
}

// moment matches a past time in an object, by the clock of the cluster, and no expiry and no schedule. It is tried at
// each Z of a text, because an expression without an anchor is slow.
var moment = regexp.MustCompile(
	`(?:creationTimestamp|lastHeartbeatTime|lastTransitionTime|renewTime|lastTimestamp|startedAt)"?:\s*` +
		`"?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)$`)

// clockApart is how far the clock of the cluster may be ahead of this machine's.
const clockApart = 24 * time.Hour

// age updates newest, the time of the bundle, by the moments in a text.
func (b *Bundle) age(text []byte) {
	const longest = 80
	for end := 0; ; {
		next := bytes.IndexByte(text[end:], 'Z')
		if next < 0 {
			return
		}
		end += next + 1
		if end < 2 || text[end-2] < '0' || text[end-2] > '9' {
			continue
		}
		if m := moment.FindSubmatch(text[max(0, end-longest):end]); m != nil {
			t, err := time.Parse(time.RFC3339Nano, string(m[1]))
			if err == nil && t.After(b.newest) && t.Before(b.now.Add(clockApart)) {
				b.newest = t
			}
		}
	}
}

var (
	// teller matches a file with errors of the collector: troubleshoot.sh writes one for each list, cilium-cli one log.
	teller = regexp.MustCompile(`(?:^|/)(?:([a-z.-]+)-errors\.json|cilium-sysdump\.log)$`)
	// unserved matches the message of cilium-cli about a resource that the API server does not have.
	unserved = regexp.MustCompile(`failed to collect ([a-z0-9]+) \(v[a-z0-9]+\): the server could not find the requested resource|` +
		`the server could not find the requested resource \(get ([a-z0-9]+)\.`)
)

// noteFailures notes a collector's errors: about one resource, or, in the log of a sysdump, about all resources.
func (b *Bundle) noteFailures(folder, resource string, text []byte) {
	if resource == "" {
		b.sysdumps[folder] = true
		for _, m := range unserved.FindAllSubmatch(text, -1) {
			b.unserved[string(m[1])+string(m[2])] = true
		}
		return
	}
	said := strings.Join(strings.Fields(string(text)), " ")
	if said != "" && said != "null" && said != "[]" && said != "{}" {
		b.failures[resource] = said[:min(len(said), 300)]
	}
}

var (
	separator    = regexp.MustCompile(`^(---|\.\.\.)(\s|$)`)
	beginsAsJSON = regexp.MustCompile(`^\s*[\[{]`)
)

// part is a part of a file, which begins at a line.
type part struct {
	file string
	line int
	text []byte
}

// from returns the rest of a part from an offset on.
func (p part) from(at int) part {
	return part{p.file, p.line + bytes.Count(p.text[:at], []byte("\n")), p.text[at:]}
}

func (p part) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// documents reads the objects of a file, and changes its text. It skips damaged documents. The error is a refusal.
func (b *Bundle) documents(all part) error {
	if beginsAsJSON.Match(all.text) {
		return b.inJSON(all)
	}
	at := 0
	for this := range bytes.Lines(all.text) {
		if separator.Match(this) {
			one := all
			one.text = all.text[:at]
			if err := b.inYAML(one); err != nil {
				return err
			}
			copy(this, "   ") // the rest of the line belongs to the next document
			all, at = all.from(at), 0
		}
		at += len(this)
	}
	return b.inYAML(all)
}

// Errors of damaged documents. The messages of the decoders are not used, because they may quote a Secret.
var errYAML, errJSON = errors.New("it is no YAML, or was cut off"), errors.New("it is no JSON, or was cut off")

// inYAML reads one document. It parses the items of a list one by one, to know the line of each, and because parsing a
// list of all pods at once needs many times its size.
func (b *Bundle) inYAML(p part) error {
	if !b.mentions(p.text) {
		return nil
	}
	if beginsAsJSON.Match(p.text) { // JSON is YAML
		return b.object(p, nil, "")
	}
	p = p.from(bytes.LastIndexByte(p.text[:len(p.text)-len(bytes.TrimLeft(p.text, " \t\r\n"))], '\n') + 1)
	head, items, isList := split(p)
	d := (*document)(nil)
	if isList {
		var h header
		if whole, err := jsonOf(head); err != nil || json.Unmarshal(whole, &h) != nil || h.APIVersion != "" && h.Kind == "" {
			b.broken(p.String(), errYAML)
		}
		if d = b.list(p.file, h, ""); d == nil {
			return nil
		}
	}
	for _, i := range items {
		if d != nil && d.kind == "" && !b.mentions(i.text) {
			continue
		}
		var err error
		if i.text, err = jsonOf(i.text); err == nil {
			if err := b.object(i, d, ""); err != nil {
				return err
			}
			continue
		}
		b.broken(i.String(), err)
		if d != nil {
			for _, l := range d.lists {
				l.flaw = "its list is damaged"
			}
		}
	}
	return nil
}

// aliased matches a YAML anchor with a later alias. A few nested aliases expand to gigabytes.
var aliased = regexp.MustCompile(`(?s)(?:\A|[^!-~]|[\[{,:?-])&[\w-].*(?:[^!-~]|[\[{,:?-])\*[\w-]`)

// jsonOf converts YAML to JSON. It refuses YAML that could take gigabytes.
func jsonOf(text []byte) ([]byte, error) {
	if len(text) > mostDocument {
		return nil, fmt.Errorf("a document of YAML, or an object in one, has more than %d MiB", mostDocument>>20)
	}
	if bytes.IndexByte(text, '&') >= 0 && aliased.Match(text) {
		return nil, errors.New("it has YAML anchors, which no API server writes")
	}
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, errYAML
	}
	return text, nil
}

// split separates the items of a YAML list, the block sequence under items, from the rest. A top-level sequence is a
// list too, and another document is one item. Lines that are indented more than the dash of an item belong to the item.
func split(all part) (head []byte, items []part, isList bool) {
	const none, ahead = -1, -2 // in place of the column of the items' dashes: no items here, and items follow
	dash, at, line := none, 0, all.line
	for this := range bytes.Lines(all.text) {
		trimmed := bytes.TrimSpace(this)
		column := len(this) - len(bytes.TrimLeft(this, " "))
		comment := this[column%len(this)] == '#' && column <= max(dash, 0)
		begins := bytes.HasPrefix(this[column:], []byte("- "))
		switch {
		case dash == none && !isList && string(trimmed) == "items:" && this[0] == 'i':
			isList, dash = true, ahead
		case begins && (dash == ahead || dash == column || !isList && column == 0 && len(bytes.TrimSpace(head)) == 0):
			isList, dash = true, column // all items have the column of the first one
			this[column] = ' '
			items = append(items, part{all.file, line, all.text[at : at+len(this)]})
		case dash >= 0 && (comment || len(trimmed) == 0 || column > dash):
			last := &items[len(items)-1]
			last.text = last.text[:len(last.text)+len(this)] // this line follows it in the text
		case !comment:
			if len(trimmed) > 0 {
				dash = none
			}
			head = append(head, this...)
		}
		at, line = at+len(this), line+1
	}
	if !isList {
		items = []part{all}
	}
	return head, items, isList
}

// inJSON reads documents of JSON, one after another.
func (b *Bundle) inJSON(all part) error {
	if json.Valid(all.text) { // one document, which is not copied
		return b.object(all, nil, "")
	}
	decoder, seen, request := json.NewDecoder(bytes.NewReader(all.text)), 0, ""
	for {
		var one json.RawMessage
		if err := decoder.Decode(&one); err != nil {
			if err != io.EOF && b.mentions(all.text) {
				b.broken(all.String(), errJSON)
			}
			return nil
		}
		at := int(decoder.InputOffset()) - len(one)
		all, seen = all.from(at-seen), at
		var before struct{ Request string }
		if json.Unmarshal(one, &before) == nil && before.Request != "" {
			request = before.Request
			b.requested[request] = true
			continue
		}
		if err := b.object(part{all.file, all.line, one}, nil, request); err != nil {
			return err
		}
		request = ""
	}
}

// span is a slice of the text that is read, not a copy.
type span []byte

// UnmarshalJSON implements json.Unmarshaler. The text outlives its reader, so it need not be copied.
func (s *span) UnmarshalJSON(text []byte) error {
	*s = text
	return nil
}

// object reads an object or a list, which may be an item of a parent list. apiVersion and kind may come from the
// parent. request is the path that the API server was asked for; empty: not known.
func (b *Bundle) object(p part, parent *document, request string) error {
	var o struct {
		header
		Items span `json:"items"`
	}
	if parent != nil && parent.kind != "" {
		o.APIVersion, o.Kind = parent.APIVersion, parent.kind
	}
	p = p.from(len(p.text) - len(bytes.TrimLeft(p.text, " \t\r\n")))
	if parent == nil && p.text[0] == '[' {
		o.Items = span(p.text)
	} else if json.Unmarshal(p.text, &o) != nil {
		if b.mentions(p.text) {
			b.broken(p.String(), errJSON)
		}
		return nil
	}
	if o.Items == nil || parent != nil && !strings.HasSuffix(o.Kind, "List") {
		return b.add(p, o.header, parent)
	}
	if parent != nil && parent.parent != nil { // lists that jq has joined have one level
		b.broken(p.String(), errors.New("it is a list in a list of lists"))
		return nil
	}
	var items []span
	d := b.list(p.file, o.header, request)
	if d == nil || json.Unmarshal(o.Items, &items) != nil {
		return nil
	}
	d.parent = parent
	for _, one := range items {
		p = p.from(max(0, bytes.Index(p.text, one))) // items are slices of the text, in its order
		if err := b.object(part{p.file, p.line, one}, d, ""); err != nil {
			return err
		}
	}
	return nil
}

// resource returns the resource of a kind, and whether it is wanted.
func (b *Bundle) resource(apiVersion, kind string) (schema.GroupVersionResource, bool) {
	group, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || kind == "" {
		return schema.GroupVersionResource{}, false
	}
	plural, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
	return plural, b.wanted[plural.GroupResource()] > 0
}

// configured matches the names of stored ConfigMaps, in kube-system: settings of Cilium, kube-proxy and CoreDNS. Other
// ConfigMaps may have secrets.
var configured = regexp.MustCompile(`(^|["\s])(cilium-config|kube-proxy(-config)?|([a-z0-9]+-)*coredns)(["\s]|$)`)

var kindIn = regexp.MustCompile(`kind"?\s*:\s*"?(\w+)`)

// mentions reports whether a text may have an object of a wanted kind, of any API group, or a list of such objects.
func (b *Bundle) mentions(whole []byte) bool {
	hasConfig := sync.OnceValue(func() bool { return configured.Match(whole) })
	for rest := whole; ; {
		m := kindIn.FindSubmatchIndex(rest)
		if m == nil {
			return false
		}
		kind := strings.TrimSuffix(string(rest[m[2]:m[3]]), "List")
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
		if kind == "" || b.plurals[plural.Resource] && (kind != "ConfigMap" || hasConfig()) {
			return true
		}
		rest = rest[m[1]:]
	}
}

// document is a list in the bundle, of one or several kinds.
type document struct {
	header
	file string
	// kind is the kind of all items; empty: each item states its kind.
	kind string
	// request is the path that the API server was asked for; empty: not known.
	request string
	parent  *document
	lists   map[*collected]*list
}

// list begins a list. It returns nil if none of its items is wanted.
func (b *Bundle) list(file string, h header, request string) *document {
	d := &document{header: h, file: file, request: request, kind: strings.TrimSuffix(h.Kind, "List"), lists: map[*collected]*list{}}
	if d.kind != "" {
		r, wanted := b.resource(h.APIVersion, d.kind)
		if !wanted {
			return nil
		}
		d.listOf(b.collection(r, d.kind))
	}
	return d
}

func (d *document) listOf(c *collected) *list {
	if d.lists[c] == nil {
		revision, _ := strconv.ParseUint(d.Metadata.ResourceVersion, 10, 64)
		l := &list{document: d, revision: revision, typed: d.kind != "" && revision > 0, nsNames: map[string]bool{}}
		d.lists[c], c.lists = l, append(c.lists, l)
	}
	return d.lists[c]
}

// add adds an object, if it is wanted. The error is a refusal.
func (b *Bundle) add(p part, o header, parent *document) error {
	k := key{o.Metadata.Namespace, o.Metadata.Name}
	r, wanted := b.resource(o.APIVersion, o.Kind)
	if !wanted || o.Kind == "ConfigMap" && (k.namespace != metav1.NamespaceSystem || !configured.MatchString(k.name)) {
		return nil
	}
	var l *list
	if parent != nil {
		l = parent.listOf(b.collection(r, o.Kind))
	}
	if o.Metadata.UID == "" {
		if l != nil {
			l.flaw = "its list has objects without metadata.uid, with which each API server answers"
		}
		return nil
	}
	now := object{json: slim(r.GroupResource(), p.text), at: p.String(), uid: o.Metadata.UID}
	now.revision, _ = strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64) // with etcd it is a number
	b.objects++
	b.jsonSize += int64(len(now.json))
	if b.objects > mostObjects || b.jsonSize > mostKept {
		return refusal(fmt.Sprintf("it has more than %d objects, or %d bytes of them", mostObjects, mostKept))
	}
	c := b.collection(r, o.Kind)
	before, found := c.objects[k]
	if found && lasting[r.GroupResource()] == k && before.uid != now.uid {
		return refusal(fmt.Sprintf("it is of two clusters, which are audited one by one: %s %s has metadata.uid %s at %s, and %s at %s",
			o.Kind, k.name, before.uid, before.at, now.uid, now.at))
	}
	b.programs(r.GroupResource(), k.namespace, now.json)
	if k.namespace != "" {
		b.namespaces.Insert(k.namespace)
	}
	if r.GroupResource() == namespaces {
		b.namespaces.Insert(k.name)
	}
	if found && before.revision >= now.revision { // the newest object with this name is stored
		now = before
	}
	if now.lists = before.lists; l != nil {
		l.nsNames[k.namespace] = true
		now.lists = append(now.lists, l)
		if !l.typed {
			l.revision = max(l.revision, now.revision)
		}
	}
	c.objects[k] = now
	return nil
}

// slim copies an object, without its metadata.managedFields, which are half of most objects. An EndpointSlice keeps
// them: they tell when it was last written.
func slim(resource schema.GroupResource, text []byte) []byte {
	var object, metadata map[string]json.RawMessage
	if resource == slicesOf || !bytes.Contains(text, []byte(`"managedFields"`)) || json.Unmarshal(text, &object) != nil ||
		json.Unmarshal(object["metadata"], &metadata) != nil {
		return bytes.Clone(text)
	}
	delete(metadata, "managedFields")
	object["metadata"], _ = json.Marshal(metadata)
	text, _ = json.Marshal(object) // it was JSON before
	return text
}
