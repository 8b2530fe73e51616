package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// header is what all objects and lists have.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
		// Continue and RemainingItemCount are set of a page of a list that is not the last.
		Continue           string `json:"continue"`
		RemainingItemCount int64  `json:"remainingItemCount"`
	} `json:"metadata"`
}

var objectBegins = regexp.MustCompile(`(?m)^(- |  )?(apiVersion|kind|items):|\A\s*(---\s)?\s*[[{](?s:.*)"(apiVersion|items)"\s*:`)

// isObjects reports whether a file may have objects, by how it begins.
func isObjects(begins []byte) bool { return objectBegins.Match(utf8Of(begins)) }

// utf8Of is a text without a mark of its order of bytes: what PowerShell has written is UTF-16.
func utf8Of(text []byte) []byte {
	if len(text) == 0 || text[0] < 0xef { // each mark begins with that, or with more
		return text
	}
	decoded, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), text)
	if err != nil {
		return text
	}
	return decoded
}

// moment is when something was so, by the clock of the cluster. Times of certificates and of Jobs to come are
// not. It is looked for at each Z: a regular expression without a beginning is slow.
var moment = regexp.MustCompile(
	`(?:creationTimestamp|lastHeartbeatTime|lastTransitionTime|renewTime|lastTimestamp|startedAt)"?:\s*` +
		`"?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)$`)

// clockApart is how far the clock of the cluster may be ahead of this machine's.
const clockApart = 24 * time.Hour

// age makes the bundle as young as the newest moment that a text names.
func (b *Bundle) age(text []byte) {
	const longest = 80
	for end := 1 + bytes.IndexByte(text, 'Z'); end > 0; {
		var m [][]byte
		if end > 1 && text[end-2] >= '0' && text[end-2] <= '9' {
			m = moment.FindSubmatch(text[max(0, end-longest):end])
		}
		if m != nil {
			t, err := time.Parse(time.RFC3339Nano, string(m[1]))
			if err == nil && t.After(b.newest) && t.Before(b.now.Add(clockApart)) {
				b.newest = t
			}
		}
		next := 1 + bytes.IndexByte(text[end:], 'Z')
		if next == 0 {
			return
		}
		end += next
	}
}

var (
	// failure is how troubleshoot.sh calls a file with the errors of a list, and sysdumpLog is cilium-cli's.
	failure    = regexp.MustCompile(`^([a-z.-]+)-errors\.json$`)
	sysdumpLog = "cilium-sysdump.log"
	// unserved is what cilium-cli writes of a resource that the API server does not have.
	unserved = regexp.MustCompile(`failed to collect ([a-z0-9]+) \(v[a-z0-9]+\): the server could not find the requested resource|` +
		`the server could not find the requested resource \(get ([a-z0-9]+)\.`)
)

func tells(name string) bool {
	return failure.MatchString(path.Base(name)) || path.Base(name) == sysdumpLog
}

// told notes what a collector says of the lists that it has not made.
func (b *Bundle) told(name string, text []byte) {
	if path.Base(name) == sysdumpLog {
		b.sysdumps[path.Dir(name)] = true
		for _, m := range unserved.FindAllSubmatch(text, -1) {
			b.unserved[string(m[1])+string(m[2])] = true
		}
		return
	}
	said := strings.Join(strings.Fields(string(text)), " ")
	if said != "" && said != "null" && said != "[]" && said != "{}" {
		b.failures[failure.FindStringSubmatch(path.Base(name))[1]] = said[:min(len(said), 300)]
	}
}

var separator = regexp.MustCompile(`^(---|\.\.\.)(\s|$)`)

// documents reads the objects of a file. Those around a document that is damaged count, and its error is of a bound.
// The text is changed.
func (b *Bundle) documents(file string, text []byte) error {
	if begins := bytes.TrimLeft(text, " \t\r\n"); len(begins) > 0 && (begins[0] == '{' || begins[0] == '[') {
		return b.inJSON(file, text)
	}
	line, first, begins := 1, 1, 0
	for at := 0; at < len(text); line++ {
		end := lineEnd(text, at)
		if (text[at] == '-' || text[at] == '.') && separator.Match(text[at:end]) {
			if err := b.inYAML(file, first, text[begins:at]); err != nil {
				return err
			}
			copy(text[at:], "   ") // what follows in the line is of the next document
			begins, first = at, line
		}
		at = end
	}
	return b.inYAML(file, first, text[begins:])
}

// lineEnd is where the line ends that begins at a place.
func lineEnd(text []byte, at int) int {
	if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n + 1
	}
	return len(text)
}

// What is wrong with a document. The decoders' own words may have a part of a Secret.
var errYAML, errJSON = errors.New("it is no YAML, or was cut off"), errors.New("it is no JSON, or was cut off")

// inYAML reads one document. The items of a list are read one by one: each has its own line then, and the
// memory of a list of all pods is many times its text.
func (b *Bundle) inYAML(file string, line int, text []byte) error {
	if !b.mentions(text) {
		return nil
	}
	blank := bytes.LastIndexByte(text[:len(text)-len(bytes.TrimLeft(text, " \t\r\n"))], '\n') + 1
	line, text = line+bytes.Count(text[:blank], []byte("\n")), text[blank:]
	if begins := bytes.TrimLeft(text, " \t"); begins[0] == '{' || begins[0] == '[' { // YAML has JSON in it
		return b.oneJSON(file, line, begins, "")
	}
	head, items, isList := split(text, line)
	if !isList {
		whole, err := jsonOf(text)
		if err != nil {
			b.broken(file, line, err)
			return nil
		}
		return b.oneJSON(file, line, whole, "")
	}
	var of header
	if whole, err := jsonOf(head); err != nil || json.Unmarshal(whole, &of) != nil || of.APIVersion != "" && of.Kind == "" {
		b.broken(file, line, errYAML)
	}
	l := b.list(file, of, "")
	if l == nil {
		return nil
	}
	for _, i := range items {
		if l.kind == "" && !b.mentions(i.text) {
			continue
		}
		one, err := jsonOf(i.text)
		if err != nil {
			b.broken(file, i.line, err)
			for _, part := range l.parts {
				part.flaw = "its list is damaged"
			}
			continue
		}
		if err := b.add(file, i.line, one, l); err != nil {
			return err
		}
	}
	return nil
}

// aliased is an anchor of YAML, and later an alias, which stands for what is at the anchor: a few of them make gigabytes.
var aliased = regexp.MustCompile(`(?s)(?:\A|[^!-~]|[\[{,:?-])&[\w-].*(?:[^!-~]|[\[{,:?-])\*[\w-]`)

// jsonOf reads YAML that it does not take gigabytes to read.
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

// item is an object of a list, with its line.
type item struct {
	text []byte
	line int
}

// split splits the block sequence under items from the rest of a list. A sequence without anything around it
// is a list too. Lines keep their place: what is deeper than the dash of an item belongs to it.
func split(text []byte, line int) (head []byte, items []item, isList bool) {
	const none, ahead = -1, -2 // the column of the items' dashes: there is none here, and it is to come
	dash := none
	for at, end := 0, 0; at < len(text); at, line = end, line+1 {
		end = lineEnd(text, at)
		this := text[at:end]
		column, isBlank := len(this)-len(bytes.TrimLeft(this, " ")), len(bytes.TrimSpace(this)) == 0
		begins := bytes.HasPrefix(this[column:], []byte("- "))
		comment := this[column%len(this)] == '#' && column <= max(dash, 0)
		switch {
		case dash == none && !isList && !comment && bytes.HasPrefix(this, []byte("items:")) && len(bytes.TrimSpace(this)) == len("items:"):
			isList, dash = true, ahead
		case !comment && begins && (dash == ahead || dash == column || !isList && column == 0 && len(bytes.TrimSpace(head)) == 0):
			isList, dash = true, column // the first item says how deep all are
			this[column] = ' '
			items = append(items, item{this, line})
		case dash >= 0 && (comment || isBlank || column > dash):
			last := &items[len(items)-1]
			last.text = last.text[:len(last.text)+len(this)] // what follows it in the text
		case !comment:
			if !isBlank {
				dash = none
			}
			head = append(head, this...)
		}
	}
	return head, items, isList
}

// inJSON reads documents of JSON, one after another.
func (b *Bundle) inJSON(file string, text []byte) error {
	if json.Valid(text) { // one document, which need not be copied
		return b.oneJSON(file, 1, text, "")
	}
	in := json.NewDecoder(bytes.NewReader(text))
	line, seen, path := 1, 0, ""
	for {
		var one json.RawMessage
		err := in.Decode(&one)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			if b.mentions(text[seen:]) {
				b.broken(file, line, errJSON)
			}
			return nil
		}
		at := int(in.InputOffset()) - len(one)
		line, seen = line+bytes.Count(text[seen:at], []byte("\n")), at
		var before struct{ Request string }
		if json.Unmarshal(one, &before) == nil && before.Request != "" {
			path = before.Request
		} else if err := b.oneJSON(file, line, one, path); err != nil {
			return err
		} else {
			path = ""
		}
	}
}

// span is a part of the text that is read, and no copy of it.
type span []byte

// UnmarshalJSON implements json.Unmarshaler. The text outlives its reader.
func (s *span) UnmarshalJSON(text []byte) error {
	*s = text
	return nil
}

// oneJSON reads one document, which begins at a line. Request is the path that the API server was asked for; empty: it
// is not known.
func (b *Bundle) oneJSON(file string, line int, text []byte, request string) error {
	var of struct {
		header
		Items span `json:"items"`
	}
	begins := bytes.TrimLeft(text, " \t\r\n")
	line, text = line+bytes.Count(text[:len(text)-len(begins)], []byte("\n")), begins
	if text[0] == '[' {
		of.Items = span(text)
	} else if json.Unmarshal(text, &of) != nil {
		if b.mentions(text) {
			b.broken(file, line, errJSON)
		}
		return nil
	}
	if of.Items == nil {
		return b.add(file, line, text, nil)
	}
	var items []span
	l, seen := b.list(file, of.header, request), 0
	if l == nil || json.Unmarshal(of.Items, &items) != nil {
		return nil
	}
	for _, one := range items {
		// The items stand in this order, each as it is.
		at := seen + max(0, bytes.Index(text[seen:], one))
		line, seen = line+bytes.Count(text[seen:at], []byte("\n")), at
		if err := b.add(file, line, one, l); err != nil {
			return err
		}
	}
	return nil
}

// resource is what objects of a kind are in, and whether they are kept.
func (b *Bundle) resource(apiVersion, kind string) (schema.GroupVersionResource, bool) {
	group, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || kind == "" {
		return schema.GroupVersionResource{}, false
	}
	plural, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
	return plural, b.wanted[plural.GroupResource()] > 0
}

// ciliumConfig is the one ConfigMap that is kept.
var ciliumConfig = key{"kube-system", "cilium-config"}

var kindIn = regexp.MustCompile(`^kind"?\s*:\s*"?(\w+)`)

// mentions reports whether a text may have an object that is kept, or a list of them.
func (b *Bundle) mentions(whole []byte) bool {
	text := whole
	for {
		at := bytes.Index(text, []byte("kind"))
		if at < 0 {
			return false
		}
		text = text[at:]
		m := kindIn.FindSubmatch(text[:min(len(text), 100)])
		if m != nil {
			kind := strings.TrimSuffix(string(m[1]), "List")
			if kind == "" || b.wants(kind) && (kind != "ConfigMap" || bytes.Contains(whole, []byte(ciliumConfig.name))) {
				return true
			}
		}
		text = text[len("kind"):]
	}
}

// wants reports whether objects of a kind are kept, of whatever group.
func (b *Bundle) wants(kind string) bool {
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return b.plurals[plural.Resource]
}

// document is a list as it stands in the bundle: of one kind, or of several.
type document struct {
	header
	file string
	// kind is of all items; empty: each has its own.
	kind string
	// request is the path that the API server was asked for; empty: it is not known.
	request string
	parts   map[schema.GroupVersionResource]*list
}

// list begins a list. It is nil if none of its items would be kept.
func (b *Bundle) list(file string, of header, request string) *document {
	d := &document{header: of, file: file, request: request, kind: strings.TrimSuffix(of.Kind, "List"),
		parts: map[schema.GroupVersionResource]*list{}}
	if d.kind == "" {
		return d
	}
	r, wanted := b.resource(of.APIVersion, d.kind)
	if !wanted {
		return nil
	}
	b.part(d, r, d.kind)
	return d
}

// customResources are files in which troubleshoot.sh has all objects of a custom resource, as a sequence alone.
var customResources = regexp.MustCompile(`(^|/)cluster-resources/custom-resources/[a-z0-9.-]+(/[a-z0-9-]+)?\.(json|yaml)$`)

// part is what a list has of one resource.
func (b *Bundle) part(d *document, r schema.GroupVersionResource, kind string) *list {
	l := d.parts[r]
	if l == nil {
		isAll := d.Kind == "" && unscoped(r.GroupResource()) && customResources.MatchString(d.file)
		l = &list{file: d.file, in: map[string]bool{}, all: isAll || d.request == Path(r)}
		l.page = d.Metadata.Continue != "" || d.Metadata.RemainingItemCount > 0
		l.revision, _ = strconv.ParseUint(d.Metadata.ResourceVersion, 10, 64)
		l.typed = d.kind != "" && l.revision > 0
		if d.Kind == "" && !customResources.MatchString(d.file) {
			l.flaw = "its list does not say of what it is one, or was cut off"
		}
		d.parts[r] = l
		c := b.of(r, kind)
		c.lists = append(c.lists, l)
	}
	return l
}

// inList is the request of a list that is in another.
const inList = "a list"

// add adds an object, if it is kept. What it does not say, the list says that it is in, if it is in one. The error
// is of a bound, or of a bundle of two clusters.
func (b *Bundle) add(file string, line int, text []byte, in *document) error {
	var o header
	if in != nil && in.kind != "" { // items of a typed list may say neither
		o.APIVersion, o.Kind = in.APIVersion, in.kind
	}
	if json.Unmarshal(text, &o) != nil {
		if b.mentions(text) {
			b.broken(file, line, errJSON)
		}
		return nil
	}
	if in != nil && strings.HasSuffix(o.Kind, "List") { // lists that jq has put together
		if in.request == inList {
			b.broken(file, line, errors.New("it is a list in a list of lists"))
			return nil
		}
		return b.oneJSON(file, line, text, inList)
	}
	r, wanted := b.resource(o.APIVersion, o.Kind)
	if !wanted || o.Kind == "ConfigMap" && (key{o.Metadata.Namespace, o.Metadata.Name}) != ciliumConfig {
		return nil
	}
	var l *list
	if in != nil {
		l = b.part(in, r, o.Kind)
	}
	if o.Metadata.UID == "" {
		if l != nil {
			l.flaw = "its list has objects without metadata.uid, with which each API server answers"
		}
		return nil
	}
	text = slim(r.GroupResource(), text)
	b.objects++
	b.kept += int64(len(text))
	if b.objects > mostObjects || b.kept > mostKept {
		return &refusal{fmt.Sprintf("it has more than %d objects, or %d bytes of them", mostObjects, mostKept)}
	}
	k, at := key{o.Metadata.Namespace, o.Metadata.Name}, fmt.Sprintf("%s:%d", file, line)
	if lasting[r.GroupResource()] == k {
		was, there := b.lasting[r.GroupResource()]
		if there && was.uid != o.Metadata.UID {
			return &refusal{fmt.Sprintf("it is of two clusters, which are audited one by one: %s %s has metadata.uid %s at %s, and %s at %s",
				o.Kind, k.name, was.uid, was.at, o.Metadata.UID, at)}
		}
		b.lasting[r.GroupResource()] = object{uid: o.Metadata.UID, at: at}
	}
	b.programs(r.GroupResource(), k.namespace, text)
	if k.namespace != "" {
		b.namespaces[k.namespace] = true
	}
	if r.GroupResource() == namespaces {
		b.namespaces[k.name] = true
	}
	now := object{json: text, at: at, uid: o.Metadata.UID}
	now.revision, _ = strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64) // of an API server in front of etcd
	b.of(r, o.Kind).put(k, now, l)
	return nil
}

// put keeps the newest of the objects of one name. Its list may be nil.
func (c *collected) put(k key, now object, l *list) {
	before, known := c.objects[k]
	if known && before.revision >= now.revision {
		now = before
	}
	if now.lists = before.lists; l != nil {
		l.in[k.namespace] = true
		now.lists = append(now.lists, l)
		if !l.typed {
			l.revision = max(l.revision, now.revision)
		}
	}
	c.objects[k] = now
}

// slim is an object in a memory of its own, without its metadata.managedFields, which are the half of most objects. Those
// of an EndpointSlice tell when it was written last.
func slim(of schema.GroupResource, text []byte) []byte {
	var object, metadata map[string]json.RawMessage
	if of == slicesOf || !bytes.Contains(text, []byte(`"managedFields"`)) || json.Unmarshal(text, &object) != nil ||
		json.Unmarshal(object["metadata"], &metadata) != nil {
		return bytes.Clone(text)
	}
	delete(metadata, "managedFields")
	object["metadata"], _ = json.Marshal(metadata)
	text, _ = json.Marshal(object) // of what was JSON
	return text
}
