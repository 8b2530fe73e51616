package images

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/mod/module"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/relapse-dev/relapse/topology/host"
)

// compiler builds the Go programs of several images. Programs of one module that take the same flags are built by one
// go command, which shares their packages and links them in parallel. One go command compiles at a time: it uses all
// CPUs. Meanwhile modules of other programs are downloaded; beside a command that only links, the next one compiles.
type compiler struct {
	cache *cache
	dir   string // where the programs go

	running     sync.Mutex // held while a go command compiles
	memory      uint64     // of this machine, in bytes; zero if unknown
	downloading sync.Mutex // held while one downloads modules
	groups      map[groupKey][]*group
	planned     map[string][]*group // by image: the group of each of its programs
	count       int                 // of all groups
}

func newCompiler(cache *cache, dir string) compiler {
	return compiler{cache: cache, dir: dir, memory: host.Memory(), groups: map[groupKey][]*group{}, planned: map[string][]*group{}}
}

// memoryToLinkBeside bytes, on a machine with two CPUs, suffice for two linkers and two compilers, each of up to 1 GiB.
const memoryToLinkBeside = 7 << 30

type groupKey struct {
	module        goModule
	tags, ldflags string
	modules       KernelModules // that take the place of /proc/modules
}

type group struct {
	key      groupKey
	packages []string // no two of them make the same file name
	dir      string

	once sync.Once // builds it
	err  error
}

// plan enters the programs of a recipe. All recipes are planned before the first is compiled.
func (c *compiler) plan(r *Recipe) {
	var groups []*group
	for _, p := range r.Programs {
		key := groupKey{module: r.module(p.In), tags: strings.Join(p.Tags, ","), ldflags: p.LDFlags, modules: r.KernelModules.replaces()}
		groups = append(groups, c.groupFor(key, p.Package))
	}
	c.planned[r.Ref] = groups
}

// groupFor enters a package into the first group of a key that has it, or no other program of the same name.
func (c *compiler) groupFor(key groupKey, pkg string) *group {
	for _, g := range c.groups[key] {
		if slices.Contains(g.packages, pkg) {
			return g
		}
		if !slices.ContainsFunc(g.packages, func(other string) bool { return executable(other) == executable(pkg) }) {
			g.packages = append(g.packages, pkg)
			return g
		}
	}
	g := &group{key: key, packages: []string{pkg}, dir: filepath.Join(c.dir, fmt.Sprint("programs-", c.count))}
	c.count++
	c.groups[key] = append(c.groups[key], g)
	return g
}

type programs struct {
	files    []string // in the recipe's order
	compiled int      // packages that were compiled for them
}

// compile builds the programs of a recipe that are not built yet, and reports of each package.
func (c *compiler) compile(ctx context.Context, r *Recipe, tell func(Event)) (programs, error) {
	built := programs{files: make([]string, len(r.Programs))}
	for i, g := range c.planned[r.Ref] {
		g.once.Do(func() {
			var packages int
			packages, g.err = c.run(ctx, r.Ref, g, tell)
			built.compiled += packages
		})
		if g.err != nil {
			return programs{}, g.err
		}
		built.files[i] = filepath.Join(g.dir, executable(r.Programs[i].Package))
	}
	return built, nil
}

func (c *compiler) run(ctx context.Context, ref string, g *group, tell func(Event)) (compiled int, err error) {
	key := g.key
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return 0, err
	}
	log, err := c.cache.newLog("go-" + filepath.Base(key.module.folder) + "-" + ref)
	if err != nil {
		return 0, err
	}
	err = func() error {
		tell(Event{Step: Downloading})
		module, overlay, err := key.module.overlay(ctx, g.dir, key.modules)
		if err != nil {
			return err
		}
		args := slices.Concat([]string{"-tags=" + key.tags}, module.compilerFlags(), overlay, g.packages)
		// It prints nothing, and leaves the modules that the programs import in Go's cache.
		download := module.command(ctx, "list", append([]string{"-deps", `-f={{""}}`}, args...)...)
		c.downloading.Lock()
		err = log.run(ctx, download)
		c.downloading.Unlock()
		if err != nil {
			return fmt.Errorf("downloading modules: %w", err)
		}
		tell(Event{Step: Compiling})
		c.running.Lock()
		free := sync.OnceFunc(c.running.Unlock)
		defer free()
		// What the go commands before this one have compiled is not stale any more.
		stale, err := module.stale(ctx, args)
		if err != nil {
			return err
		}
		build := module.command(ctx, "build", append([]string{
			"-v", "-trimpath", "-buildvcs=false", "-ldflags=" + strings.TrimSpace("-s -w "+key.ldflags), "-o", g.dir + "/",
		}, args...)...)
		build.Env = append(build.Env, "GOGC=off", fmt.Sprint("GOMEMLIMIT=", c.collectFrom()))
		build.Stderr = &packageLines{packages: stale, report: func(name string) {
			compiled++
			if compiled == len(stale) && c.memory >= memoryToLinkBeside { // only linking is left
				free()
			}
			tell(Event{Step: Compiling, Package: name, Number: compiled, Packages: len(stale)})
		}}
		return log.run(ctx, build)
	}()
	return compiled, log.close(ctx, ref, err)
}

// compilerFlags are flags of go build and go list for the module's programs. They leave out
// debugging information, as the linker would in any case: Go's cache is a quarter smaller without
// it, and a large generated package such as AWS's client takes 34 s of CPU time in place of 59.
// make build compiles with the same flag, so that what our own programs import is compiled once.
func (m goModule) compilerFlags() []string {
	const undebugged = "-dwarf=false"
	flags := []string{"-gcflags=all=" + undebugged}
	if m.build != nil {
		for _, pkg := range m.build.vendor.Unused {
			flags = append(flags, "-gcflags="+pkg+"=-N -l "+undebugged)
		}
	}
	return flags
}

// packageLines finds the names of packages in what go build -v says, a line each when it begins to compile one.
type packageLines struct {
	packages sets.Set[string]
	report   func(name string)
	rest     []byte // of a line that has not ended
}

func (p *packageLines) Write(data []byte) (int, error) {
	p.rest = append(p.rest, data...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(data), nil
		}
		p.rest = rest
		if name := string(line); p.packages.Has(name) {
			p.report(name)
		}
	}
}

// collectFrom is the memory in bytes from which compilers and linkers collect garbage. They are Go programs that soon
// end: without collection, client-go's applyconfigurations/core/v1 with what it imports takes 61 s of CPU time in
// place of 77. 1 GiB is for machines with the 4 GiB that the README asks for. AWS's ec2, the largest package, needs
// more than that: with 1 GiB it had not ended after 88 s of CPU time.
func (c *compiler) collectFrom() uint64 { return max(1<<30, c.memory/8) }

// executable is the name that go build gives to a program: the last element of its path that is no major version.
func executable(pkg string) string {
	prefix, _, ok := module.SplitPathVersion(pkg)
	if !ok {
		prefix = pkg
	}
	return path.Base(prefix)
}
