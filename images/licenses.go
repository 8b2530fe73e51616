package images

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// licenseFile is the name of a file that a module's licence asks to go with its programs.
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
