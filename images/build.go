package images

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Step says what happens to an image at one moment of Build.
type Step string

// Steps of an image, in their order. An image has Reused alone, or some of the others and Built at the end.
const (
	Reused      Step = "in the cache"
	Waiting     Step = "another process builds it"
	Installing  Step = "installing Debian packages"
	Downloading Step = "looking for modules, and downloading what is not there"
	Compiling   Step = "waiting for the compiler" // and compiling: one go command at a time
	Assembling  Step = "writing layers"
	Running     Step = "running the recipe's script"
	Built       Step = "built"
)

// Event reports the start of an image's step or, in the step Compiling, of the compilation of a package.
type Event struct {
	Ref  string
	Step Step
	// Elapsed is the time since the image's first step.
	Elapsed time.Duration
	// Package is what is being compiled: the Number-th of Packages that the go command had to compile when it began.
	// It is empty at the start of the step, and while the go command compiles for another image.
	Package          string
	Number, Packages int
	// Compiled, at the end of an image that was built, is how many packages were compiled for it. Packages that an earlier
	// image shares, or that Go's cache held, are not counted.
	Compiled int
	// Elsewhere, at the end, says that another process has built it.
	Elsewhere bool
}

// String says what happens to the image, without its name.
func (e Event) String() string {
	switch {
	case e.Package != "":
		return fmt.Sprintf("compiling %d of %d packages: %s", e.Number, e.Packages, e.Package)
	case e.Step != Built:
		return string(e.Step)
	case e.Elsewhere:
		return "built by another process"
	}
	text := fmt.Sprintf("built in %.1f s", e.Elapsed.Seconds())
	switch {
	case e.Compiled == 1:
		text += " (1 package)"
	case e.Compiled > 1:
		text += fmt.Sprintf(" (%d packages)", e.Compiled)
	}
	return text
}

// Summary says what Build did.
type Summary struct {
	// Built are the images that were built, as they were ready; Reused were in the cache, in order of build.
	Built  []Timing
	Reused []string
	Took   time.Duration
	// CPU is the CPU time of this process and of the commands that it ran meanwhile, user's and system's.
	CPU time.Duration
}

// Timing is the time from an image's first step to its last.
type Timing struct {
	Ref  string
	Took time.Duration
}

// String renders the summary for people, one image a line.
func (s Summary) String() string {
	var b strings.Builder
	for _, t := range s.Built {
		fmt.Fprintf(&b, "built  %-50s %7.1f s\n", t.Ref, t.Took.Seconds())
	}
	for _, ref := range s.Reused {
		fmt.Fprintf(&b, "reused %s\n", ref)
	}
	fmt.Fprintf(&b, "%d built, %d reused, %.1f s", len(s.Built), len(s.Reused), s.Took.Seconds())
	if len(s.Built) > 0 {
		fmt.Fprintf(&b, ", %.1f CPU s on %d CPUs", s.CPU.Seconds(), runtime.NumCPU())
	}
	b.WriteByte('\n')
	return b.String()
}

// Build makes sure that the cache holds the images refs and the bases they need. It calls progress, which may be nil,
// at the start of each step, never twice at the same time. A build that fails returns a *BuildError with the end of
// its log, an unknown ref is bad input; images that were ready by then stay in the cache.
func (c *Catalogue) Build(ctx context.Context, refs []string, progress func(Event)) (Summary, error) {
	start, used := time.Now(), usedCPU()
	needed, err := c.closure(refs)
	if err != nil {
		return Summary{}, err
	}
	keys, err := c.keys(ctx, needed)
	if err != nil {
		return Summary{}, err
	}
	if err := c.cache.prepare(); err != nil {
		return Summary{}, err
	}
	workspace, remove, err := c.cache.workspace(ctx)
	if err != nil {
		return Summary{}, err
	}
	b := &build{
		Catalogue: c, keys: keys, dir: workspace, progress: progress,
		compiler: newCompiler(c.cache, workspace),
		ready:    map[string]chan struct{}{},
	}
	var missing []string
	for _, ref := range needed {
		b.ready[ref] = make(chan struct{})
		if c.cache.entry(keys[ref]).damage != nil {
			missing = append(missing, ref)
			continue
		}
		b.event(Event{Ref: ref, Step: Reused}, time.Now())
		b.summary.Reused = append(b.summary.Reused, ref)
		close(b.ready[ref])
	}
	err = b.run(ctx, missing)
	if removeErr := remove(); err == nil && removeErr != nil {
		err = fmt.Errorf("removing the build's folder: %w", removeErr)
	}
	b.summary.Took, b.summary.CPU = time.Since(start), usedCPU()-used
	return b.summary, err
}

func usedCPU() (used time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if unix.Getrusage(who, &usage) == nil {
			used += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return used
}

type build struct {
	*Catalogue
	keys     map[string]string
	dir      string
	compiler compiler
	ready    map[string]chan struct{} // closed when the cache holds the image

	mu       sync.Mutex // guards what follows
	progress func(Event)
	summary  Summary
}

func (b *build) event(e Event, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.progress != nil {
		e.Elapsed = time.Since(since)
		b.progress(e)
	}
}

func (b *build) run(ctx context.Context, missing []string) error {
	for _, ref := range missing {
		r, _ := b.Recipe(ref)
		if r.needsRoot() && os.Geteuid() != 0 {
			return fmt.Errorf("building image %s: debootstrap and chroot need root; run it with sudo: %w", ref, fs.ErrPermission)
		}
		b.compiler.plan(r)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, ref := range missing {
		r, _ := b.Recipe(ref)
		group.Go(func() error { return b.image(ctx, r) })
	}
	return group.Wait()
}

// image builds one image, if no other process has done so in the meantime. Its programs are
// compiled while its base is built and its Debian packages are installed.
func (b *build) image(ctx context.Context, r *Recipe) error {
	start := time.Now()
	unlock, err := b.cache.lock(ctx, r.Ref, func() { b.event(Event{Ref: r.Ref, Step: Waiting}, start) })
	if err != nil {
		return err
	}
	defer unlock()
	var built programs
	cached := b.cache.entry(b.keys[r.Ref]).damage == nil
	if !cached {
		tell := func(e Event) {
			e.Ref = r.Ref
			b.event(e, start)
		}
		compiled := make(chan programs, 1)
		work, ctx := errgroup.WithContext(ctx)
		work.Go(func() error {
			p, err := b.compiler.compile(ctx, r, tell)
			if err == nil {
				compiled <- p
			}
			return err
		})
		work.Go(func() (err error) {
			built, err = b.assemble(ctx, r, compiled, tell)
			return err
		})
		if err := work.Wait(); err != nil {
			return err
		}
	}
	b.event(Event{Ref: r.Ref, Step: Built, Compiled: built.compiled, Elsewhere: cached}, start)
	close(b.ready[r.Ref])
	b.mu.Lock()
	defer b.mu.Unlock()
	b.summary.Built = append(b.summary.Built, Timing{r.Ref, time.Since(start)})
	return nil
}

// assemble makes an image's layers, config and manifest, and enters it into the cache. It
// waits for the base, and then for the programs, which it returns.
func (b *build) assemble(ctx context.Context, r *Recipe, compiled <-chan programs, tell func(Event)) (built programs, err error) {
	log, err := b.cache.newLog(r.Ref)
	if err != nil {
		return programs{}, err
	}
	defer func() { err = log.close(ctx, r.Ref, err) }()

	base := entry{manifest: &v1.Manifest{}}
	config := &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"}}
	if r.Base != "" {
		if _, err := await(ctx, b.ready[r.Base]); err != nil {
			return programs{}, err
		}
		if base = b.cache.entry(b.keys[r.Base]); base.damage != nil {
			return programs{}, fmt.Errorf("reading base %s: %w", r.Base, base.damage)
		}
		if config, err = base.config(); err != nil {
			return programs{}, fmt.Errorf("reading base %s: %w", r.Base, err)
		}
	}
	image, err := newLayout(filepath.Join(b.dir, fileName(r.Ref)+"-layout"))
	if err != nil {
		return programs{}, fmt.Errorf("creating the image's layout: %w", err)
	}
	layers, built, err := b.layers(ctx, r, base, image, compiled, log, tell)
	if err != nil {
		return programs{}, err
	}
	if r.Debian != nil && r.Debian.Slim {
		base.manifest.Layers, config.RootFS.DiffIDs = nil, nil
	}
	if err := image.link(base.imageLayout, base.manifest.Layers); err != nil {
		return programs{}, fmt.Errorf("taking the layers of base %s: %w", r.Base, err)
	}
	for _, layer := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.Digest) // not compressed: one and the same
	}
	r.configure(config)
	if err := image.finish(r.Ref, config, slices.Concat(base.manifest.Layers, layers)); err != nil {
		return programs{}, err
	}
	return built, b.cache.add(image, b.keys[r.Ref])
}

// await waits for what a channel yields, or until it is closed.
func await[T any](ctx context.Context, from <-chan T) (value T, err error) {
	select {
	case value = <-from:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return value, err
}

func (b *build) layers(
	ctx context.Context, r *Recipe, base entry, image imageLayout, compiled <-chan programs, log *buildLog, tell func(Event),
) (layers []v1.Descriptor, built programs, err error) {
	add := func(fill func(*layerWriter) error) error {
		layer, err := image.layer(fill)
		layers = append(layers, layer)
		return err
	}
	root := rootfs{dir: filepath.Join(b.dir, fileName(r.Ref))}
	if r.needsRoot() && r.Base != "" {
		if err := root.unpack(ctx, log, base.imageLayout, base.manifest.Layers); err != nil {
			return nil, built, err
		}
	}
	if r.Debian != nil {
		tell(Event{Step: Installing})
		tree, err := root.install(ctx, log, r)
		if err != nil {
			return nil, built, err
		}
		if err := add(func(w *layerWriter) error { return w.writeTree(tree) }); err != nil {
			return nil, built, fmt.Errorf("writing the layer of Debian packages: %w", err)
		}
	}
	if built, err = await(ctx, compiled); err != nil {
		return nil, built, err
	}
	if err := r.provePrograms(built.files); err != nil {
		return nil, built, err
	}
	tell(Event{Step: Assembling, Compiled: built.compiled})
	items, err := r.items(ctx, built.files)
	if err != nil {
		return nil, built, err
	}
	if len(items) > 0 {
		if err := add(func(w *layerWriter) error { return w.writeItems(items) }); err != nil {
			return nil, built, fmt.Errorf("writing the layer of programs and files: %w", err)
		}
	}
	if r.Run == "" {
		return layers, built, nil
	}
	tell(Event{Step: Running})
	if len(items) > 0 {
		if err := root.unpack(ctx, log, image, layers[len(layers)-1:]); err != nil {
			return nil, built, err
		}
	}
	tree, err := root.script(ctx, log, r.Run)
	if err != nil {
		return nil, built, fmt.Errorf("running the recipe's script: %w", err)
	}
	if err := add(func(w *layerWriter) error { return w.writeTree(tree) }); err != nil {
		return nil, built, fmt.Errorf("writing the layer of the script's changes: %w", err)
	}
	return layers, built, nil
}

func (r *rootfs) install(ctx context.Context, log *buildLog, recipe *Recipe) (tree string, err error) {
	debian := recipe.Debian
	if recipe.Base == "" {
		tree, err = r.debootstrap(ctx, log, debian)
	} else {
		tree, err = r.script(ctx, log, installPackages(debian))
	}
	if err != nil {
		return "", fmt.Errorf("installing Debian packages: %w", err)
	}
	if err := recipe.provePackages(tree); err != nil {
		return "", err
	}
	if debian.Slim {
		if tree, err = r.script(ctx, log, selectPackages(debian.Packages)); err != nil {
			return "", fmt.Errorf("selecting Debian packages: %w", err)
		}
		tree = filepath.Join(tree, selected)
		r.lowers = []string{tree}
	}
	return tree, nil
}

func (r *Recipe) items(ctx context.Context, programs []string) ([]item, error) {
	var items []item
	for i, p := range r.Programs {
		items = append(items, item{path: p.Path, source: programs[i], mode: 0o755})
	}
	if r.Licenses != "" {
		found, err := r.licenses(ctx)
		if err != nil {
			return nil, fmt.Errorf("taking licences: %w", err)
		}
		items = append(items, found...)
	}
	for _, d := range r.Directories {
		mode := fs.FileMode(0o755)
		if path.Clean(d) == "/tmp" {
			mode = 0o1777
		}
		items = append(items, item{path: d, directory: true, mode: mode})
	}
	for _, from := range slices.Sorted(maps.Keys(r.Links)) {
		items = append(items, item{path: from, link: r.Links[from], mode: 0o777})
	}
	if k := r.KernelModules.replaces(); k.Path != "" {
		text, err := builtIn()
		if err != nil {
			return nil, err
		}
		items = append(items, item{path: k.Path, text: text, mode: 0o644})
	}
	for _, f := range r.Files {
		folder := filepath.Join(r.folder, f.In)
		if f.Module != "" {
			var err error
			if folder, err = r.module(f.In).source(ctx, f.Module); err != nil {
				return nil, err
			}
		}
		found, err := f.items(filepath.Join(folder, f.Source))
		if err != nil {
			return nil, fmt.Errorf("taking %s: %w", f.Source, err)
		}
		items = append(items, found...)
	}
	return items, nil
}

func (f File) items(source string) ([]item, error) {
	set, err := f.permissions()
	if err != nil {
		return nil, err
	}
	var items []item
	err = filepath.WalkDir(source, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		mode := set
		switch {
		case mode != 0:
		case info.Mode()&0o111 != 0:
			mode = 0o755
		default:
			mode = 0o644
		}
		items = append(items, item{path: path.Join(f.Path, filepath.ToSlash(name)), source: file, mode: mode})
		return nil
	})
	return items, err
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)`)

// licenses lists the licences of Go and of the modules that the recipe's programs are made of,
// each module's in a folder with its path as its name. A module without one is an error.
func (r *Recipe) licenses(ctx context.Context) ([]item, error) {
	folders := map[string]string{} // by path of the module
	for _, p := range r.Programs {
		m := r.module(p.In)
		out, err := output(m.command(ctx, "list", "-deps", "-tags="+strings.Join(p.Tags, ","),
			"-f={{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", p.Package))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(out)) {
			if module, folder, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
				folders[module] = folder
			}
		}
		root, err := output(m.command(ctx, "env", "GOROOT"))
		if err != nil {
			return nil, err
		}
		folders["go"] = strings.TrimSpace(string(root))
	}
	var items []item
	for module, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		before := len(items)
		for _, entry := range entries {
			if entry.Type().IsRegular() && licenseFile.MatchString(entry.Name()) {
				items = append(items, item{path: path.Join(r.Licenses, module, entry.Name()), source: filepath.Join(folder, entry.Name()), mode: 0o644})
			}
		}
		if len(items) == before {
			return nil, fmt.Errorf("%s in %s has none", module, folder)
		}
	}
	return items, nil
}

func (r *Recipe) configure(config *v1.ConfigFile) {
	config.Created = v1.Time{Time: epoch.UTC()}
	c := &config.Config
	c.Entrypoint, c.Cmd = r.Entrypoint, r.Cmd // a base's would not fit
	if r.User != "" {
		c.User = r.User
	}
	if r.Workdir != "" {
		c.WorkingDir = r.Workdir
	}
	if r.StopSignal != "" {
		c.StopSignal = r.StopSignal
	}
	if len(c.Env) == 0 {
		c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		c.Env = slices.DeleteFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		c.Env = append(c.Env, name+"="+r.Env[name])
	}
	if r.Component != "" {
		c.Labels = map[string]string{
			"dev.relapse.component": r.Component, "dev.relapse.version": r.Version, "dev.relapse.form": string(r.Form),
		}
	}
}
