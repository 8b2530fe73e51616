package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// tiny is a source tree with an image of files and one on top of it.
var tiny = map[string]string{
	"a/image.yaml": `
images:
  - ref: x.dev/a:1
    files: [{source: etc, path: /etc, mode: "0600"}]
    directories: [/tmp]
    links: {/etc/second: first}
    env: {B: "2", A: "1"}
    entrypoint: [/bin/a]
    stopSignal: SIGRTMIN+3
  - ref: x.dev/b:1
    base: x.dev/a:1
    files: [{source: etc/first, path: /b}, {in: ../c, source: third, path: /c}]
    env: {A: "3"}
`,
	"a/etc/first":      "1",
	"a/etc/sub/second": "2",
	"c/third":          "3",
}

// program is a source tree with an image of one Go program.
func program(source string) map[string]string {
	return map[string]string{
		"p/image.yaml":   "images: [{ref: x.dev/p:1, programs: [{package: ./main, path: /p}]}]",
		"p/go.mod":       "module p\n\ngo 1.24\n",
		"p/go.sum":       "",
		"p/main/main.go": source,
	}
}

const hello = "package main\n\nfunc main() { println(1) }\n"

// uncompiled is a program that Go's cache does not have.
func uncompiled() string { return strings.Replace(hello, "1", fmt.Sprint(time.Now().UnixNano()), 1) }

func mustBuild(t *testing.T, c *Catalogue, refs ...string) map[string]v1.Hash {
	t.Helper()
	must.Get(c.Build(t.Context(), refs, nil))(t)
	return must.Get(c.Digests(t.Context(), refs))(t)
}

func builtEntry(t *testing.T, c *Catalogue, ref string) entry {
	t.Helper()
	mustBuild(t, c, ref)
	return must.Get(c.entries(t.Context(), []string{ref}))(t)[ref]
}

func TestBuildContent(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	built := builtEntry(t, c, "x.dev/b:1")
	image := must.Get(built.Image(built.Digest))(t)
	layers := must.Get(image.Layers())(t)
	var got []string
	for _, layer := range layers {
		got = append(got, listing(t, must.Get(layer.Uncompressed())(t))...)
	}
	want := []string{
		"etc/first -rw-------", "etc/second -> first", "etc/sub/second -rw-------", "tmp/ dtrwxrwxrwx",
		"b -rw-r--r--", "c -rw-r--r--",
	}
	must.Equal(t, "files of the layers", want, got)
	config := must.Get(image.ConfigFile())(t)
	must.Equal(t, "environment", []string{"B=2", "A=3"}, config.Config.Env[1:])
	must.Equal(t, "stop signal, of the base", "SIGRTMIN+3", config.Config.StopSignal)
	must.Equal(t, "entrypoint, not of the base", nil, config.Config.Entrypoint)
}

func listing(t *testing.T, layer io.ReadCloser) []string {
	t.Helper()
	defer layer.Close()
	var lines []string
	for archive := tar.NewReader(layer); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		must.NoError(t, err)
		if header.Typeflag == tar.TypeSymlink {
			lines = append(lines, header.Name+" -> "+header.Linkname)
			continue
		}
		lines = append(lines, header.Name+" "+header.FileInfo().Mode().String())
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	files := program(hello)
	maps.Copy(files, tiny)
	refs := []string{"x.dev/b:1", "x.dev/p:1"}
	first := mustBuild(t, open(t, newRoot(t, files)), refs...)
	second := mustBuild(t, open(t, newRoot(t, files)), refs...)
	for _, ref := range refs {
		must.Equal(t, ref, second[ref], first[ref])
	}
}

func TestBuildReuses(t *testing.T) {
	root := newRoot(t, tiny)
	c := open(t, root)
	mustBuild(t, c, "x.dev/a:1")
	var steps []Step
	summary := must.Get(c.Build(t.Context(), []string{"x.dev/b:1"}, func(e Event) { steps = append(steps, e.Step) }))(t)
	must.Equal(t, "steps", []Step{Reused, Assembling, Built}, steps)
	must.Equal(t, "built and reused", "x.dev/b:1 x.dev/a:1", summary.Built[0].Ref+" "+strings.Join(summary.Reused, " "))
}

// Build tells of each package that it compiles, and of how many. A package in Go's cache is not compiled.
func TestBuildTellsOfPackages(t *testing.T) {
	files := program("package main\n\nimport \"p/part\"\n\nfunc main() { part.Say() }\n")
	// Not in Go's cache, whatever ran before.
	files["p/part/part.go"] = fmt.Sprintf("package part\n\nfunc Say() { println(%d) }\n", time.Now().UnixNano())
	c := open(t, newRoot(t, files))
	var events []string
	must.Get(c.Build(t.Context(), []string{"x.dev/p:1"}, func(e Event) {
		if e.Step == Built {
			e.Elapsed = 1500 * time.Millisecond
		}
		events = append(events, e.String())
	}))(t)
	must.Equal(t, "", []string{
		"looking for modules, and downloading what is not there", "waiting for the compiler",
		"compiling 1 of 2 packages: p/part", "compiling 2 of 2 packages: p/main",
		"writing layers", "built in 1.5 s (2 packages)",
	}, events)
}

func TestKey(t *testing.T) {
	files := program(hello)
	maps.Copy(files, tiny)
	keys := func(c *Catalogue) map[string]string { return must.Get(c.keys(t.Context(), c.refs))(t) }
	root := newRoot(t, files)
	before := keys(open(t, root))
	must.Equal(t, "equal inputs in two places", before, keys(open(t, newRoot(t, files))))
	for _, test := range []struct {
		name, file, content string
		changes             []string
	}{
		{"go.sum", "p/go.sum", "x v1.0.0 h1:x=\n", []string{"x.dev/p:1"}},
		{"go.mod", "p/go.mod", "module p\n\ngo 1.25\n", []string{"x.dev/p:1"}},
		{"source", "p/main/main.go", hello + "\n", []string{"x.dev/p:1"}},
		{"test", "p/main/main_test.go", "package main\n", nil},
		{"file", "a/etc/sub/second", "3", []string{"x.dev/a:1", "x.dev/b:1"}},
		{"file of another folder", "c/third", "4", []string{"x.dev/b:1"}},
		{"recipe of one", "p/image.yaml", "images: [{ref: x.dev/p:1, user: '1', programs: [{package: ./main, path: /p}]}]", []string{"x.dev/p:1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := maps.Clone(files)
			changed[test.file] = test.content
			newKeys := keys(open(t, newRoot(t, changed)))
			for ref := range before {
				must.Equal(t, "another key of "+ref, slices.Contains(test.changes, ref), newKeys[ref] != before[ref])
			}
		})
	}
}

func TestFailedBuild(t *testing.T) {
	root := newRoot(t, program("package main\n\nfunc main() { undefined() }\n"))
	c := open(t, root)
	failed, ok := errors.AsType[*BuildError](must.Err(c.Build(t.Context(), []string{"x.dev/p:1"}, nil)))
	must.Equal(t, failed, true, ok)
	must.Equal(t, "image", "x.dev/p:1", failed.Ref)
	must.Contain(t, strings.Join(failed.Tail, "\n"), "undefined: undefined")
	must.Get(os.Stat(failed.Log))(t)
	expectNothingHalfMade(t, c)
}

func TestInterruptedBuild(t *testing.T) {
	c := open(t, newRoot(t, program(hello)))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Build(ctx, []string{"x.dev/p:1"}, func(e Event) {
		if e.Step == Compiling {
			cancel()
		}
	})
	must.Is(t, err, context.Canceled)
	must.Equal(t, "it is a failure of the build", false, errors.As(err, new(*BuildError)))
	expectNothingHalfMade(t, c)
}

// expectNothingHalfMade checks that a cache has no image and nothing of a build.
func expectNothingHalfMade(t *testing.T, c *Catalogue) {
	t.Helper()
	for _, dir := range []string{"tmp", "layouts"} {
		must.Equal(t, dir, 0, len(must.Get(os.ReadDir(filepath.Join(c.cache.dir, dir)))(t)))
	}
}

func TestBuildRemovesWhatKilledBuildsLeft(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	must.NoError(t, c.cache.prepare())
	running, remove, err := c.cache.workspace(t.Context())
	must.NoError(t, err)
	defer remove()
	killed := filepath.Join(c.cache.dir, "tmp", "build-killed")
	must.NoError(t, os.MkdirAll(filepath.Join(killed, "x"), 0o755))
	mustBuild(t, c, "x.dev/a:1")
	must.Is(t, must.Err(os.Stat(killed)), os.ErrNotExist)
	must.Get(os.Stat(running))(t)
}

func TestBuildsAtOnce(t *testing.T) {
	root := newRoot(t, tiny)
	var mu sync.Mutex
	built := map[string]int{}
	var all sync.WaitGroup
	for range 4 {
		c := open(t, root) // one cache
		all.Go(func() {
			_, err := c.Build(t.Context(), []string{"x.dev/b:1"}, func(e Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Step == Assembling {
					built[e.Ref]++
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, ref := range []string{"x.dev/a:1", "x.dev/b:1"} {
		must.Equal(t, ref, 1, built[ref])
	}
}

// An image and its base have one file of a layer.
func TestSharedLayer(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	base, built := builtEntry(t, c, "x.dev/a:1"), builtEntry(t, c, "x.dev/b:1")
	shared := base.manifest.Layers[0]
	one := must.Get(os.Stat(base.blob(shared.Digest)))(t)
	must.Equal(t, "one file of a layer", true, os.SameFile(one, must.Get(os.Stat(built.blob(shared.Digest)))(t)))
}

func TestTruncatedBlobIsRebuilt(t *testing.T) {
	root := newRoot(t, tiny)
	c := open(t, root)
	built := builtEntry(t, c, "x.dev/a:1")
	must.NoError(t, os.Truncate(built.blob(built.manifest.Layers[0].Digest), 1))
	must.Equal(t, "built", 1, len(must.Get(c.Build(t.Context(), []string{"x.dev/a:1"}, nil))(t).Built))
}

// What waits for the network does not wait for other programs' compilation.
func TestDownloadsBesideCompilation(t *testing.T) {
	c := open(t, newRoot(t, program(hello)))
	must.NoError(t, c.cache.prepare())
	r, _ := c.Recipe("x.dev/p:1")
	compiler := newCompiler(c.cache, t.TempDir())
	compiler.plan(r)
	said := func() string {
		text, _ := os.ReadFile(filepath.Join(c.cache.dir, "logs", fileName("go-p-"+r.Ref)+".log")) // none at first
		return string(text)
	}

	compiler.running.Lock() // as another go command does that compiles
	type result struct {
		programs
		err error
	}
	compiled, waits := make(chan result, 1), make(chan struct{})
	go func() {
		built, err := compiler.compile(t.Context(), r, func(e Event) {
			if e.Step == Compiling && e.Package == "" {
				close(waits)
			}
		})
		compiled <- result{built, err}
	}()
	select {
	case <-waits:
	case got := <-compiled:
		t.Fatalf("compiled beside another compilation: %+v", got)
	case <-time.After(time.Minute):
		t.Fatalf("no download ended beside another compilation; the log says %q", said())
	}
	select {
	case got := <-compiled:
		t.Fatalf("compiled beside another compilation: %+v", got)
	case <-time.After(100 * time.Millisecond): // that nothing happens has no condition to wait for
	}
	if log := said(); !strings.Contains(log, "+ go list") || strings.Contains(log, "+ go build") {
		t.Errorf("beside another compilation it ran %q", log)
	}
	compiler.running.Unlock()
	got := <-compiled
	must.NoError(t, got.err)
	must.Get(os.Stat(got.files[0]))(t)
}

// A go command that only links lets the next one compile, where memory is enough for both.
func TestCompilationBesideLinking(t *testing.T) {
	for memory, enough := range map[uint64]bool{memoryToLinkBeside: true, 0: false} {
		c := open(t, newRoot(t, program(uncompiled())))
		must.NoError(t, c.cache.prepare())
		r, _ := c.Recipe("x.dev/p:1")
		compiler := newCompiler(c.cache, t.TempDir())
		compiler.memory = memory
		compiler.plan(r)
		last := false
		must.Get(compiler.compile(t.Context(), r, func(e Event) {
			if e.Package == "" || e.Number < e.Packages {
				return
			}
			last = true
			if free := compiler.running.TryLock(); free != enough {
				t.Errorf("when memory is enough (%v), another go command may compile: %v", enough, free)
			} else if free {
				compiler.running.Unlock()
			}
		}))(t)
		must.Equal(t, "the last package was told", true, last)
	}
}

// Programs are compiled while another process builds the base of their image.
func TestCompilationBeforeBase(t *testing.T) {
	files := program(uncompiled())
	files["p/image.yaml"] = strings.Replace(files["p/image.yaml"], "ref: x.dev/p:1", "ref: x.dev/p:1, base: x.dev/a:1", 1)
	maps.Copy(files, tiny)
	c := open(t, newRoot(t, files))
	must.NoError(t, c.cache.prepare())
	release := sync.OnceFunc(must.Get(c.cache.lock(t.Context(), "x.dev/a:1", func() {}))(t))
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var steps []string
	must.Get(c.Build(ctx, []string{"x.dev/p:1"}, func(e Event) {
		if e.Package != "" && e.Number == e.Packages {
			steps = append(steps, "compiled "+e.Ref)
			release()
		} else if e.Step == Built {
			steps = append(steps, "built "+e.Ref)
		}
	}))(t)
	must.Equal(t, "", []string{"compiled x.dev/p:1", "built x.dev/a:1", "built x.dev/p:1"}, steps)
}

func TestSummary(t *testing.T) {
	s := Summary{
		Built:  []Timing{{"x.dev/a:1", 98200 * time.Millisecond}},
		Reused: []string{"x.dev/b:1"}, Took: 120 * time.Second, CPU: 170 * time.Second,
	}
	want := "built  x.dev/a:1                                             98.2 s\n" +
		"reused x.dev/b:1\n" +
		fmt.Sprintf("1 built, 1 reused, 120.0 s, 170.0 CPU s on %d CPUs\n", runtime.NumCPU())
	must.Equal(t, "", want, s.String())
}

func TestExecutable(t *testing.T) {
	for pkg, want := range map[string]string{
		"k8s.io/kubernetes/cmd/kubelet": "kubelet", "go.etcd.io/etcd/server/v3": "server", "./agent": "agent",
	} {
		must.Equal(t, pkg, want, executable(pkg))
	}
}

func TestLicenses(t *testing.T) {
	files := map[string]string{
		"go.mod":        "module m\n\ngo 1.26\n\nrequire x.dev/a v0.0.0\n\nreplace x.dev/a => ./a\n",
		"program/p.go":  "package main\n\nimport _ \"x.dev/a/b\"\n\nfunc main() {}\n",
		"a/go.mod":      "module x.dev/a\n\ngo 1.26\n",
		"a/b/b.go":      "package b\n",
		"a/LICENSE.txt": "", "a/Copying": "", "a/README.md": "", "a/b/LICENSE": "",
	}
	r := &Recipe{folder: filepath.Join(newRoot(t, files), "images"), Licenses: "/licenses", Programs: []Program{{Package: "./program"}, {Package: "./program"}}}
	items := must.Get(r.licenses(t.Context()))(t)
	paths := each.Of(items, func(i item) string { return i.path })
	slices.Sort(paths)
	want := []string{"/licenses/go/LICENSE", "/licenses/go/PATENTS", "/licenses/x.dev/a/Copying", "/licenses/x.dev/a/LICENSE.txt"}
	must.Equal(t, "", want, paths)

	delete(files, "a/LICENSE.txt")
	delete(files, "a/Copying")
	r.folder = filepath.Join(newRoot(t, files), "images")
	must.Fail(t, must.Err(r.licenses(t.Context())), "x.dev/a in "+r.folder+"/a has none")
}

// The commands of a build beside a lab have the lowest priority, in their session and, where the
// kernel schedules by session, among the sessions.
func TestBesideLab(t *testing.T) {
	log := &buildLog{must.Get(os.Create(filepath.Join(t.TempDir(), "log")))(t)}
	defer log.file.Close()
	// The priorities are set once the command runs.
	const yields = `for try in $(seq 100); do
		[ "$(nice)" = 19 ] && { [ ! -e /proc/self/autogroup ] || grep -q "nice 19" /proc/self/autogroup; } && exit
		sleep 0.05
	done
	nice; cat /proc/self/autogroup; exit 1`
	if err := log.run(BesideLab(t.Context()), exec.Command("bash", "-c", yields)); err != nil {
		tail, _ := log.tail()
		t.Errorf("%v: %q", err, tail)
	}
}
