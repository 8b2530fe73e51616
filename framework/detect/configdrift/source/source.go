// Package source reads what a version of Cilium says of its configuration, without running it: the
// vendor's reference of commands, which its programs print, the registrations of flags in its Go
// code, for those that the reference hides, its chart, and its upgrade notes. All of it is in the
// vendor's module.
package source

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// modulePath is Cilium's.
const modulePath = "github.com/cilium/cilium"

// Program reads the ConfigMap.
type Program struct {
	// Name is that of its page in the reference, Package its folder in the module.
	Name, Package string
}

// The programs that read the ConfigMap: the agent, and the operator with all of its ways of handing
// out addresses.
var (
	Agent    = Program{"cilium-agent", "daemon"}
	Operator = Program{"cilium-operator", "operator"}
)

// Flag is a flag of a program, which is also a key of its ConfigMap.
type Flag struct {
	// Type is in pflag's words, Default as pflag prints it.
	Type, Default string
	// Deprecated is the vendor's note.
	Deprecated string
	Hidden     bool
	// Computed is set where the code computes the default, which the reference lacks: it is not known.
	Computed bool
	// Unregistered is set where there is no such flag, and the code reads the key all the same.
	Unregistered bool
}

// Flags returns the flags of a program by name. Dir is the module's folder. The reference says which
// there are, and their defaults; it lacks those that are hidden or deprecated, which are those that the
// packages of the program register and mark so, and keys that the program asks for without a flag.
func Flags(dir string, p Program) (map[string]Flag, error) {
	stated, err := reference(filepath.Join(dir, "Documentation/cmdref"), p.Name)
	if err != nil {
		return nil, err
	}
	code, gets, err := registered(dir, p.Package, stated)
	if err != nil {
		return nil, fmt.Errorf("reading the flags of %s in %s: %w", p.Name, dir, err)
	}
	all := map[string]Flag{}
	for name, s := range stated {
		f := Flag{Type: s.kind, Default: s.value}
		if c, ok := code[name]; ok && c.Type != "map" {
			f.Type = c.Type
		}
		if f.Default == "" {
			f.Default = zero(f.Type)
		}
		all[name] = f
	}
	for name, c := range code {
		if _, visible := stated[name]; !visible && c.Hidden && !slices.Contains(NotKeys, name) {
			all[name] = c
		}
	}
	for name, kind := range gets {
		if _, ok := all[name]; !ok && !slices.Contains(NotKeys, name) {
			all[name] = Flag{Type: kind, Unregistered: true, Computed: true}
		}
	}
	return all, nil
}

// zero is how pflag prints a default that its help leaves out.
func zero(kind string) string {
	switch {
	case kind == "bool":
		return "false"
	case kind == "duration":
		return "0s"
	case strings.HasSuffix(kind, "Slice"), kind == "stringToString":
		return "[]"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"), strings.HasPrefix(kind, "float"):
		return "0"
	}
	return ""
}

// program is the code of one, as far as it is in the vendor's module.
type program struct {
	dir   string
	build build.Context
	files *token.FileSet
	// packages are by path, nil where one has no code for Linux.
	packages map[string]*types.Package
	found    []registration
	marks    []mark
	// gets are the types of keys that are asked for, in pkg/option and the program's own folders.
	gets map[string]string
	own  []string
}

// registration is a flag that a function of a package registers.
type registration struct {
	name, path, function string
	Flag
}

// mark is a call in a package that hides a flag, or calls it deprecated.
type mark struct{ name, path, note string }

// registered returns the flags that the packages of a program register. A program also links packages
// of others, whose flags it does not register: the hidden flags of a function, or of a package, that
// registers visible ones which the program does not state are left out.
func registered(dir, folder string, stated map[string]stated) (flags map[string]Flag, gets map[string]string, err error) {
	p := newProgram(dir)
	p.gets, p.own = map[string]string{}, []string{modulePath + "/" + folder, modulePath + "/pkg/option"}
	if folder == Operator.Package {
		p.own = p.own[:1] // pkg/option is the agent's
	}
	if _, err := p.load(modulePath + "/" + folder); err != nil {
		return nil, nil, err
	}
	for _, m := range p.marks {
		for i, f := range p.found {
			if f.name == m.name && f.path == m.path {
				p.found[i].Hidden = true // as pflag does for both
				p.found[i].Deprecated = cmp.Or(m.note, f.Deprecated)
			}
		}
	}
	// By package, and by package and function: whether one that is visible is stated, and one is not.
	is, not := map[string]bool{}, map[string]bool{}
	for _, f := range p.found {
		if _, visible := stated[f.name]; visible {
			is[f.path], is[f.path+f.function] = true, true
		} else if !f.Hidden {
			not[f.path], not[f.path+f.function] = true, true
		}
	}
	all := map[string]Flag{}
	own := map[string]bool{}
	for _, f := range p.found {
		in := strings.HasPrefix(f.path, modulePath+"/"+folder)
		switch within := f.path + f.function; {
		case own[f.name], !in && all[f.name].Type != "":
		case in, is[within] && !not[within], !is[within] && !not[within] && (is[f.path] || !not[f.path]):
			all[f.name], own[f.name] = f.Flag, in
		}
	}
	return all, p.gets, nil
}

func newProgram(dir string) *program {
	p := &program{dir: dir, build: build.Default, files: token.NewFileSet(), packages: map[string]*types.Package{}}
	p.build.GOOS, p.build.GOARCH, p.build.CgoEnabled = "linux", "amd64", false
	p.build.BuildTags = []string{"ipam_provider_operator", "ipam_provider_aws", "ipam_provider_azure", "ipam_provider_alibabacloud"}
	return p
}

// Import implements types.Importer. Modules of others are not read: the checker goes on without them,
// and so does it without the standard library but for the constants of time and math.
func (p *program) Import(path string) (*types.Package, error) {
	if strings.HasPrefix(path, modulePath+"/") {
		return p.load(path)
	}
	if known, ok := standard[path]; ok {
		return known, nil
	}
	return nil, fmt.Errorf("%s is not read", path)
}

// load checks a package and what it imports, and takes down the flags that it registers.
func (p *program) load(path string) (*types.Package, error) {
	if known, ok := p.packages[path]; ok {
		if known == nil {
			return nil, fmt.Errorf("%s has no code", path)
		}
		return known, nil
	}
	p.packages[path] = nil
	folder := filepath.Join(p.dir, strings.TrimPrefix(path, modulePath+"/"))
	found, err := p.build.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	registers := false
	for _, name := range found.GoFiles {
		f, err := parser.ParseFile(p.files, filepath.Join(folder, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		registers = registers || imports(f, "github.com/spf13/pflag") || imports(f, "github.com/spf13/cobra") || imports(f, "github.com/spf13/viper")
	}
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{
		Importer: p, IgnoreFuncBodies: !registers, FakeImportC: true,
		Error: func(error) {}, // of what is not read
	}
	checked, _ := conf.Check(path, p.files, files, &info)
	p.packages[path] = checked
	if registers {
		for _, f := range files {
			for _, d := range f.Decls {
				s := registrations{program: p, path: path, info: &info, files: files}
				if function, is := d.(*ast.FuncDecl); is {
					s.function = fmt.Sprint(function.Pos())
				}
				ast.Inspect(d, s.visit)
			}
		}
	}
	return checked, nil
}

func imports(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(path) })
}

// registrations are the calls in a package that register flags and mark them.
type registrations struct {
	*program
	path, function string
	info           *types.Info
	files          []*ast.File
}

// kinds are the types of flags by the name of the method that registers one, in pflag's words.
var kinds = func() map[string]string {
	all := map[string]string{}
	for _, name := range []string{
		"Bool", "Duration", "Float32", "Float64", "Int", "Int8", "Int16", "Int32", "Int64", "Uint", "Uint8", "Uint16", "Uint32", "Uint64",
		"String", "StringSlice", "StringArray", "StringToString", "IntSlice", "UintSlice", "DurationSlice", "IP", "IPNet", "Count",
	} {
		kind := strings.ToLower(name[:1]) + name[1:]
		if strings.HasPrefix(name, "IP") {
			kind = strings.ToLower(name[:2]) + name[2:]
		}
		all[name] = kind
	}
	return all
}()

func (r registrations) visit(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return true
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	r.get(method, call.Args)
	if name, is := method.X.(*ast.Ident); is {
		if _, function := r.info.Uses[name].(*types.PkgName); function {
			return true // of another package, such as slog.String
		}
	}
	args := call.Args
	switch method.Sel.Name {
	case "MarkHidden", "MarkDeprecated":
		if len(args) == 0 {
			return true
		}
		name, ok := r.text(args[0])
		if !ok {
			return true
		}
		note := ""
		if method.Sel.Name == "MarkDeprecated" && len(args) == 2 {
			if note, ok = r.text(args[1]); !ok {
				note = "deprecated" // in words that the code puts together
			}
		}
		r.marks = append(r.marks, mark{name, r.path, note})
		return true
	case "Var", "VarP":
		if len(args) < 3 {
			return true
		}
		if name, ok := r.text(args[1]); ok {
			r.register(name, Flag{Type: "map", Computed: true})
		}
		return true
	}
	base := strings.TrimSuffix(method.Sel.Name, "P")
	if method.Sel.Name == "IP" {
		base = "IP"
	}
	if trimmed, is := strings.CutSuffix(base, "Var"); is && len(args) > 0 {
		base, args = trimmed, args[1:]
	}
	kind, ok := kinds[base]
	if !ok || len(args) < 2 {
		return true
	}
	name, ok := r.text(args[0])
	if !ok {
		return true
	}
	value := args[1]
	if strings.HasSuffix(method.Sel.Name, "P") && method.Sel.Name != "IP" {
		if len(args) < 3 {
			return true
		}
		value = args[2]
	}
	text, known := r.byDefault(kind, value)
	r.register(name, Flag{Type: kind, Default: text, Computed: !known})
	return true
}

// get takes down a key that the program asks viper for, which is called vp where it is no package.
func (r registrations) get(method *ast.SelectorExpr, args []ast.Expr) {
	if !slices.ContainsFunc(r.own, func(p string) bool { return strings.HasPrefix(r.path, p) }) {
		return
	}
	from, is := method.X.(*ast.Ident)
	if !is || len(args) == 0 {
		return
	}
	key := args[0]
	if asked, is := key.(*ast.Ident); is && asked.Name == "vp" && len(args) == 2 { // command.GetStringMapString
		from, key = asked, args[1]
	}
	kind, ok := strings.CutPrefix(method.Sel.Name, "Get")
	if !ok || from.Name != "vp" && from.Name != "viper" {
		return
	}
	if name, ok := r.text(key); ok {
		switch kind {
		case "StringMapString", "StringMapStringE":
			kind = "StringToString"
		case "SizeInBytes":
			kind = "Uint"
		}
		r.gets[name] = kinds[kind]
	}
}

func (r registrations) register(name string, f Flag) {
	r.found = append(r.found, registration{name, r.path, r.function, f})
}

// text is a string that is known without running the code.
func (r registrations) text(e ast.Expr) (string, bool) {
	if v := r.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v), true
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return r.text(e.X)
	case *ast.BinaryExpr:
		a, ok := r.text(e.X)
		b, also := r.text(e.Y)
		return a + b, ok && also && e.Op == token.ADD
	case *ast.CallExpr: // fmt.Sprintf of texts
		if method, is := e.Fun.(*ast.SelectorExpr); !is || method.Sel.Name != "Sprintf" || len(e.Args) == 0 {
			return "", false
		}
		var args []any
		for _, a := range e.Args {
			s, ok := r.text(a)
			if !ok {
				return "", false
			}
			args = append(args, s)
		}
		return fmt.Sprintf(args[0].(string), args[1:]...), true
	}
	return "", false
}

// byDefault is a default as pflag prints it, and whether it is known without running the code.
func (r registrations) byDefault(kind string, e ast.Expr) (string, bool) {
	if v := r.info.Types[e].Value; v != nil && v.Kind() != constant.Unknown {
		return printed(kind, v), true
	}
	switch e := e.(type) {
	case *ast.Ident:
		if e.Name == "nil" {
			return zero(kind), true
		}
		if v, ok := r.info.Uses[e].(*types.Var); ok {
			if init := r.initial(v.Name()); init != nil {
				return r.byDefault(kind, init)
			}
		}
	case *ast.CompositeLit:
		return r.list(e)
	case *ast.CallExpr: // a conversion
		if len(e.Args) == 1 {
			if to, is := r.info.Types[e.Fun]; is && to.IsType() {
				return r.byDefault(kind, e.Args[0])
			}
		}
	case *ast.SelectorExpr:
		return r.field(kind, e)
	}
	return "", false
}

func printed(kind string, v constant.Value) string {
	switch v.Kind() {
	case constant.String:
		return constant.StringVal(v)
	case constant.Int:
		if n, exact := constant.Int64Val(v); exact && kind == "duration" {
			return time.Duration(n).String()
		}
	case constant.Float:
		f, _ := constant.Float64Val(v)
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return v.ExactString()
}

// list is a slice of texts.
func (r registrations) list(e *ast.CompositeLit) (string, bool) {
	var all []string
	for _, element := range e.Elts {
		s, ok := r.text(element)
		if !ok {
			return "", false
		}
		all = append(all, s)
	}
	return "[" + strings.Join(all, ",") + "]", true
}

// initial is what a variable of the package is initialised with.
func (r registrations) initial(name string) ast.Expr {
	for _, f := range r.files {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, n := range v.Names {
					if n.Name == name && i < len(v.Values) {
						return v.Values[i]
					}
				}
			}
		}
	}
	return nil
}

// field is the default that stands in a field of the configuration that a cell is given: the package
// has one literal of that type.
func (r registrations) field(kind string, e *ast.SelectorExpr) (string, bool) {
	of := r.info.TypeOf(e.X)
	if of == nil {
		return "", false
	}
	named := func(t types.Type) types.Object {
		if p, is := t.(*types.Pointer); is {
			t = p.Elem()
		}
		if n, is := t.(*types.Named); is {
			return n.Obj()
		}
		return nil
	}
	want := named(of)
	if want == nil {
		return "", false
	}
	var literals []*ast.CompositeLit
	for _, f := range r.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if c, is := n.(*ast.CompositeLit); is && r.info.TypeOf(c) != nil && named(r.info.TypeOf(c)) == want {
				literals = append(literals, c)
			}
			return true
		})
	}
	if len(literals) != 1 {
		return "", false
	}
	for _, element := range literals[0].Elts {
		pair, is := element.(*ast.KeyValueExpr)
		if !is {
			return "", false
		}
		if key, is := pair.Key.(*ast.Ident); is && key.Name == e.Sel.Name {
			return r.byDefault(kind, pair.Value)
		}
	}
	return zero(kind), true
}

// standard is a package of the standard library: what of it stands in defaults.
var standard = map[string]*types.Package{"time": times(), "math": numbers()}

// times are the units of package time.
func times() *types.Package {
	p := types.NewPackage("time", "time")
	duration := types.NewNamed(types.NewTypeName(token.NoPos, p, "Duration", nil), types.Typ[types.Int64], nil)
	p.Scope().Insert(duration.Obj())
	for name, d := range map[string]time.Duration{
		"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
		"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
	} {
		p.Scope().Insert(types.NewConst(token.NoPos, p, name, duration, constant.MakeInt64(int64(d))))
	}
	p.MarkComplete()
	return p
}

// numbers are the limits of package math.
func numbers() *types.Package {
	p := types.NewPackage("math", "math")
	for name, n := range map[string]uint64{
		"MaxInt": math.MaxInt, "MaxInt8": math.MaxInt8, "MaxInt16": math.MaxInt16, "MaxInt32": math.MaxInt32, "MaxInt64": math.MaxInt64,
		"MaxUint8": math.MaxUint8, "MaxUint16": math.MaxUint16, "MaxUint32": math.MaxUint32, "MaxUint64": math.MaxUint64,
	} {
		p.Scope().Insert(types.NewConst(token.NoPos, p, name, types.Typ[types.UntypedInt], constant.MakeUint64(n)))
	}
	p.MarkComplete()
	return p
}

// nothing imports nothing.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not read", path)
}

// Replaced are the keys that are no flags, and that the agent puts in the place of others when it
// reads a ConfigMap, with these: those of the vendor's function ReplaceDeprecatedFields.
func Replaced(dir string) (map[string]string, error) {
	p := newProgram(dir)
	folder := filepath.Join(dir, "pkg/option")
	file := filepath.Join(folder, "config.go")
	f, err := parser.ParseFile(p.files, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}}
	_, _ = conf.Check(modulePath+"/pkg/option", p.files, []*ast.File{f}, &info)
	for _, d := range f.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Name.Name != "ReplaceDeprecatedFields" {
			continue
		}
		all := map[string]string{}
		text := func(e ast.Expr) string {
			if v := info.Types[e].Value; v != nil && v.Kind() == constant.String {
				return constant.StringVal(v)
			}
			return ""
		}
		ast.Inspect(function, func(n ast.Node) bool {
			if pair, ok := n.(*ast.KeyValueExpr); ok && text(pair.Key) != "" {
				all[text(pair.Key)] = text(pair.Value)
			}
			return true
		})
		return all, nil
	}
	return nil, fmt.Errorf("%s has no function ReplaceDeprecatedFields", file)
}

// fromConfigMap is how a container's environment takes a key of the ConfigMap.
var fromConfigMap = regexp.MustCompile(`configMapKeyRef:\s+name: cilium-config\s+key: ([a-z0-9-]+)`)

// PodKeys are the keys that the chart gives to containers as environment variables.
func PodKeys(dir string) ([]string, error) {
	var all []string
	root := filepath.Join(dir, "install/kubernetes/cilium")
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, found := range fromConfigMap.FindAllStringSubmatch(string(text), -1) {
			all = append(all, found[1])
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the chart: %w", err)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Validated are the types of flags whose values the agent validates when it reads a ConfigMap, by the
// functions that parse a text as one: it does not start with another text.
func Validated(dir string) (map[string]bool, error) {
	file := filepath.Join(dir, "pkg/option/config.go")
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	parses := map[string]string{"bool": "ToBoolE", "duration": "ToDurationE", "int": "ToIntE"}
	all := map[string]bool{}
	for _, d := range f.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Name.Name != "validateConfigMap" && function.Name.Name != "validateConfigMapFlag" {
			continue
		}
		ast.Inspect(function, func(n ast.Node) bool {
			clause, ok := n.(*ast.CaseClause)
			if !ok || len(clause.List) != 1 {
				return true
			}
			literal, ok := clause.List[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			kind, err := strconv.Unquote(literal.Value)
			if err != nil {
				return true
			}
			ast.Inspect(clause, func(n ast.Node) bool {
				if call, is := n.(*ast.SelectorExpr); is && call.Sel.Name == parses[kind] {
					all[kind] = true
				}
				return true
			})
			return true
		})
	}
	return all, nil
}
