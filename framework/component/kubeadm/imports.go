package kubeadm

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	importLine = regexp.MustCompile(`(?m)^[ \t]*import[ \t]+(\S+).*\n?`)
	// snippet finds the blocks of a Corefile that import may name in place of files.
	snippet = regexp.MustCompile(`(?m)^[ \t]*\((\S+)\)[ \t]*\{`)
)

// mostImports bounds the files that a Corefile imports, which may import others.
const mostImports = 100

// Import puts files, by their names without folders, in place of a Corefile's import directives, in
// order of their names, as CoreDNS does. It returns a clause for each pattern that matches none, which
// CoreDNS passes over. Directives that name a snippet of the Corefile stay.
func Import(corefile string, files map[string]string) (text string, told []string, err error) {
	for range mostImports {
		at := slices.IndexFunc(importLine.FindAllStringSubmatch(corefile, -1), func(m []string) bool { return !isSnippet(corefile, m[1]) })
		if at < 0 {
			return corefile, told, nil
		}
		m := importLine.FindAllStringSubmatchIndex(corefile, -1)[at]
		pattern := corefile[m[2]:m[3]]
		var in string
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if is, err := path.Match(path.Base(pattern), name); err != nil {
				return "", nil, fmt.Errorf("import %s: %w", pattern, err)
			} else if is {
				in += strings.TrimSuffix(files[name], "\n") + "\n"
			}
		}
		switch {
		case in == "" && strings.ContainsAny(pattern, "*?["):
			told = append(told, fmt.Sprintf("import %s: there is no such file, and CoreDNS passes it over", pattern))
		case in == "":
			return "", nil, fmt.Errorf("import %s: there is no such file, without which CoreDNS does not start: expected %s in "+
				"the folder of --import",
				pattern, path.Base(pattern))
		}
		corefile = corefile[:m[0]] + in + corefile[m[1]:]
	}
	return "", nil, fmt.Errorf("it has more than %d imports, or files that import each other", mostImports)
}

func isSnippet(corefile, name string) bool {
	return slices.ContainsFunc(snippet.FindAllStringSubmatch(corefile, -1), func(m []string) bool { return m[1] == name })
}
