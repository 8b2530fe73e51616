// Package bundle reads the files of a bug report, written by a collector, and answers requests for lists as the
// collector's API server did.
//
// A bundle is a folder, a zip, or a tar that may be compressed by gzip, and may contain other archives. Each document
// with apiVersion, kind and metadata.uid is an object, or a list of objects. Paths do not matter, except for names of
// namespaces in them. This works for cilium sysdump, kubectl cluster-info dump, oc adm inspect and must-gather,
// troubleshoot.sh, and kubectl get -o yaml.
//
// A bundle may come from a stranger: nothing is written, no link is followed, and the size is bounded.
package bundle

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Bounds on the size of a bundle.
const (
	// mostText bounds all files, uncompressed, in bytes, mostFile a file with objects, and mostDocument an object in
	// YAML, whose parser needs a hundred times as much memory. The API server stores less than 2 MiB.
	mostText     = 8 << 30
	mostFile     = 256 << 20
	mostDocument = 4 << 20
	// mostZip bounds a zip in an archive (read into memory) and any zip's directory (some times as much), in bytes.
	mostZip = 64 << 20
	// mostKept bounds all stored objects, as JSON, in bytes.
	mostKept = 512 << 20
	// mostFiles bounds the number of files in a bundle and its archives.
	mostFiles = 500_000
	// mostNested bounds the depth of archives in archives. A sysdump contains archives of its nodes.
	mostNested = 4
	// mostObjects bounds the number of objects.
	mostObjects = 2_000_000
)

// Bundle is the content of a bundle.
type Bundle struct {
	// resources are stored. wanted counts the API versions of each, and plurals are their names.
	resources []schema.GroupVersionResource
	wanted    map[schema.GroupResource]int
	plurals   map[string]bool
	kinds     map[schema.GroupVersionResource]*collected
	// failures are the collector's errors by resource, and unserved the resources that the API server does not have.
	failures map[string]string
	unserved map[string]bool
	// namespaces are the namespaces with a document, and homes the namespaces in which MetalLB runs.
	namespaces sets.Set[string]
	homes      map[string]bool
	// said are the objects that other objects refer to. daemons is the largest desired number of pods of a DaemonSet.
	said    map[schema.GroupResource]sets.Set[key]
	daemons int
	// named are the API groups of vendors whose programs objects name, sysdumps the folders written by cilium-cli, and
	// dumps the folders written by kubectl cluster-info dump.
	named, sysdumps, dumps map[string]bool

	// renewed is the latest renewal of a node's Lease, which is about when the Leases were read; zero: not known.
	newest, renewed time.Time
	now             time.Time

	mu sync.Mutex
	// asked are the paths of requested lists that the bundle lacks, and requested the paths that the collector requested.
	asked, requested map[string]bool

	// values are the files with the values of Cilium's Helm release.
	values map[string][]byte

	text, jsonSize, objects int64
	// files is the number of files, and used the number of files with objects.
	files, used int
	// Broken are documents that look like objects and cannot be read, by their file and line, each with the reason.
	Broken []snapshot.Missing
}

// Open reads a bundle, and stores the objects of wanted resources. The error says why nothing of the bundle can be
// used; a file that cannot be read is in Broken instead.
func Open(file string, wanted []schema.GroupVersionResource) (*Bundle, error) {
	b := newBundle(wanted)
	err := b.read(file)
	if err == nil && (b.objects == 0 || b.newest.IsZero()) {
		err = fmt.Errorf("none of its %d files contains an object that is read here, as a cluster has it (with metadata.uid)", b.files)
		if len(b.Broken) > 0 {
			err = fmt.Errorf("%w; %s", err, b.Broken[0])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the bundle %s: %w", file, err)
	}
	b.settle()
	return b, nil
}

func newBundle(wanted []schema.GroupVersionResource) *Bundle {
	b := &Bundle{resources: wanted, wanted: map[schema.GroupResource]int{}, plurals: map[string]bool{},
		kinds:    map[schema.GroupVersionResource]*collected{},
		failures: map[string]string{}, unserved: map[string]bool{}, namespaces: sets.Set[string]{}, homes: map[string]bool{},
		said: map[schema.GroupResource]sets.Set[key]{}, named: map[string]bool{}, sysdumps: map[string]bool{}, dumps: map[string]bool{},
		values: map[string][]byte{}, asked: map[string]bool{}, requested: map[string]bool{}, now: time.Now()}
	for _, r := range append(slices.Clone(wanted), namespaces.WithVersion("v1")) {
		b.wanted[r.GroupResource()]++
		b.plurals[r.Resource] = true
	}
	return b
}

// Time is the newest moment that a document names, which is the time of the bundle.
func (b *Bundle) Time() time.Time { return b.newest }

// Namespaces are the namespaces with a document.
func (b *Bundle) Namespaces() []string { return sets.List(b.namespaces) }

// String says what was read.
func (b *Bundle) String() string {
	text := fmt.Sprintf("%d of %d files of the bundle have objects of the cluster, as of %s", b.used, b.files,
		b.newest.UTC().Format("2006-01-02 15:04:05 UTC"))
	for _, broken := range b.Broken {
		text += "; not read: " + broken.String()
	}
	return text
}

func (b *Bundle) read(file string) error {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return b.folder(file)
	case !info.Mode().IsRegular():
		return errors.New("expected a folder, or a file that is a zip, a tar or a tar.gz")
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, len(zipMagic))
	if _, err := f.ReadAt(magic, 0); err == nil && bytes.Equal(magic, zipMagic) {
		return b.zip("", f, info.Size(), 0)
	}
	return b.file(path.Base(file), f, 0)
}

func (b *Bundle) folder(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.Type().IsRegular() {
			return nil
		}
		var f *os.File
		if err == nil {
			f, err = root.Open(name)
		}
		return b.entry(name, f, err, 0)
	})
}

// entry reads a file of a folder or of a zip, or notes why it cannot be opened.
func (b *Bundle) entry(name string, f io.ReadCloser, err error, nested int) error {
	if err != nil {
		b.broken(name, err)
		return nil
	}
	defer f.Close()
	return b.file(name, f, nested)
}

var zipMagic, gzipMagic = []byte("PK\x03\x04"), []byte{0x1f, 0x8b}

// refusal is the error of a bundle that is too large, or of two clusters.
type refusal string

func (r refusal) Error() string { return string(r) }

// counted counts the bytes of files, so that an endless archive is refused.
type counted struct {
	io.Reader
	b *Bundle
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.b.text += int64(n); c.b.text > mostText {
		return n, refusal(fmt.Sprintf("it has more than %d bytes of text", int64(mostText)))
	}
	return n, err
}

// file reads a file by its content. A damaged archive, and a file that cannot be read, is noted in Broken.
func (b *Bundle) file(name string, from io.Reader, nested int) error {
	if b.files++; b.files > mostFiles {
		return refusal(fmt.Sprintf("it has more than %d files", mostFiles))
	}
	err := b.content(name, bufio.NewReaderSize(counted{from, b}, 64<<10), nested)
	if err == nil || errors.As(err, new(refusal)) {
		return err
	}
	b.broken(name, err)
	return nil
}

// mostBroken bounds Broken.
const mostBroken = 20

func (b *Bundle) broken(name string, err error) {
	if len(b.Broken) < mostBroken {
		b.Broken = append(b.Broken, snapshot.Missing{Source: strings.ReplaceAll(name, ": ", ":") + " of the bundle", Reason: err.Error()})
	}
}

func (b *Bundle) content(name string, r *bufio.Reader, nested int) error {
	begins, _ := r.Peek(512)
	isTar := len(begins) >= 262 && string(begins[257:262]) == "ustar"
	if (isTar || bytes.HasPrefix(begins, gzipMagic) || bytes.HasPrefix(begins, zipMagic)) && nested >= mostNested {
		return fmt.Errorf("archives are nested more than %d deep", mostNested)
	}
	switch {
	case bytes.HasPrefix(begins, gzipMagic):
		unzipped, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		name = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, ".tgz"), ".gz"), ".tar")
		return b.content(name, bufio.NewReaderSize(counted{unzipped, b}, 64<<10), nested+1)
	case isTar:
		return b.tar(strings.TrimSuffix(name, ".tar"), r, nested)
	case bytes.HasPrefix(begins, zipMagic):
		text, err := whole(r, mostZip)
		if err != nil {
			return err
		}
		return b.zip(name, bytes.NewReader(text), int64(len(text)), nested)
	}
	if m := dump.FindStringSubmatch(name); m != nil {
		b.dumps[cmp.Or(m[1], ".")] = true
	}
	if helmValues.MatchString(name) {
		text, err := whole(r, mostDocument)
		if err == nil {
			b.values[name] = text
		}
		return err
	}
	begins, _ = r.Peek(r.Size())
	tells := teller.FindStringSubmatch(name)
	if tells == nil && !objectBegins.Match(utf8Of(begins)) {
		return nil // a log, or the output of a program
	}
	text, err := whole(r, mostFile)
	if err != nil {
		return err
	}
	text = utf8Of(text)
	if tells != nil {
		b.noteFailures(path.Dir(name), tells[1], text)
		return nil
	}
	before := b.objects
	b.age(text)
	if err = b.documents(part{name, 1, text}); b.objects > before {
		b.used++
	}
	return err
}

func whole(r io.Reader, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d MiB", most>>20)
	}
	return text, err
}

func (b *Bundle) tar(name string, r io.Reader, nested int) error {
	archive := tar.NewReader(r)
	for {
		entry, err := archive.Next()
		if err == nil && entry.Typeflag == tar.TypeReg {
			err = b.file(inside(name, entry.Name), archive, nested+1)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (b *Bundle) zip(name string, r io.ReaderAt, size int64, nested int) error {
	directory := &bounded{r, mostZip}
	archive, err := zip.NewReader(directory, size)
	if err != nil {
		return err
	}
	directory.left = math.MaxInt64
	for _, entry := range archive.File {
		if !entry.Mode().IsRegular() {
			continue
		}
		f, err := entry.Open()
		if err := b.entry(inside(name, entry.Name), f, err, nested+1); err != nil {
			return err
		}
	}
	return nil
}

// bounded bounds the reading of a zip's directory, whatever size the zip states.
type bounded struct {
	io.ReaderAt
	left int64
}

func (r *bounded) ReadAt(to []byte, at int64) (int, error) {
	if r.left -= int64(len(to)); r.left < 0 {
		return 0, fmt.Errorf("the directory of the zip has more than %d MiB", mostZip>>20)
	}
	return r.ReaderAt.ReadAt(to, at)
}

func inside(archive, entry string) string {
	return strings.TrimPrefix(path.Join(archive, path.Clean("/"+entry)), "/")
}

// Where returns the places of an object, as FILE:LINE. An example of kind is Node.
func (b *Bundle) Where(kind, namespace, name string) []string {
	var all []string
	for _, c := range b.kinds {
		if o, there := c.objects[key{namespace, name}]; there && c.kind == kind {
			all = append(all, o.at)
		}
	}
	slices.Sort(all)
	return all
}

// helmValues is the file in which cilium-cli writes the values of the Helm release.
var helmValues = regexp.MustCompile(`(^|/)cilium-helm-values-[^/]*\.yaml$`)

// HelmValues returns the values of Cilium's chart, and their file; nil: none. Several files must have the same values.
func (b *Bundle) HelmValues() (file string, text []byte, err error) {
	for _, name := range slices.Sorted(maps.Keys(b.values)) {
		if text != nil && !bytes.Equal(text, b.values[name]) {
			return "", nil, fmt.Errorf("the bundle has different values in %s and in %s", file, name)
		}
		file, text = name, b.values[name]
	}
	return file, text, nil
}

// Objects returns the objects of a resource, in order of namespace and name, and why the cluster may have more; empty:
// it has no more.
func (b *Bundle) Objects(r schema.GroupVersionResource) (all []json.RawMessage, lacks string) {
	if c := b.kinds[r]; c != nil {
		for _, k := range slices.SortedFunc(maps.Keys(c.objects), key.compare) {
			all = append(all, c.objects[k].json)
		}
	}
	return all, b.lacks(r)
}
