package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, path := range must.Get(documents(root))(t) {
		must.Equal(t, path, nil, brokenLinks(t, path))
	}
}

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	must.Write(t, filepath.Join(dir, "other.md"), "# Other\n\n## `--wait` and `keep`\n")
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{name: "a file", text: "[a](other.md) ![b](other.md)"},
		{name: "the folder", text: "[a](.)"},
		{name: "another site", text: "[a](https://example.com/x#y) <https://example.com>"},
		{name: "anchors", text: "# Here\n\n[a](#here) [b](other.md#--wait-and-keep)"},
		{name: "in code", text: "`[a](none.md)`"},
		{name: "no file", text: "[a](none.md)", want: []string{"none.md: no such file"}},
		{name: "no file, in a table", text: "| a |\n|---|\n| [a](none.md) |", want: []string{"none.md: no such file"}},
		{name: "no file, by reference", text: "[a][r]\n\n[r]: none.md", want: []string{"none.md: no such file"}},
		{name: "no file for an image", text: "![a](none.png)", want: []string{"none.png: no such file"}},
		{name: "no anchor", text: "# Here\n\n[a](#there)", want: []string{"#there: no such heading"}},
		{name: "no anchor elsewhere", text: "[a](other.md#there)", want: []string{"other.md#there: no such heading"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, problem := range brokenLinks(t, must.Write(t, filepath.Join(dir, "it.md"), c.text)) {
				got = append(got, strings.TrimPrefix(problem, dir+"/it.md: "))
			}
			must.Equal(t, "", c.want, got)
		})
	}
}

// brokenLinks describes each link of a document that leads to a file or a heading that
// does not exist. Links to other sites are not followed.
func brokenLinks(t *testing.T, path string) []string {
	t.Helper()
	var problems []string
	report := func(link, problem string) {
		problems = append(problems, fmt.Sprintf("%s: %s: %s", path, link, problem))
	}
	walk(t, path, func(node ast.Node) {
		var link string
		switch node := node.(type) {
		case *ast.Link:
			link = string(node.Destination)
		case *ast.Image:
			link = string(node.Destination)
		default:
			return
		}
		target, err := url.Parse(link)
		if err != nil {
			report(link, err.Error())
			return
		}
		if target.Scheme != "" {
			return
		}
		file := path
		if target.Path != "" {
			file = filepath.Join(filepath.Dir(path), target.Path)
		}
		if _, err := os.Stat(file); err != nil {
			report(link, "no such file")
		} else if target.Fragment != "" && !anchors(t, file)[target.Fragment] {
			report(link, "no such heading")
		}
	})
	return problems
}

// anchors are the identifiers of a document's headings. goldmark derives them as GitHub
// does, but for underscores and letters that are not ASCII.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	walk(t, path, func(node ast.Node) {
		if node.Kind() != ast.KindHeading {
			return
		}
		if id, ok := node.AttributeString("id"); ok {
			all[string(id.([]byte))] = true
		}
	})
	return all
}

func walk(t *testing.T, path string, visit func(ast.Node)) {
	t.Helper()
	source := must.Read(t, path)
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	must.NoError(t, ast.Walk(markdown.Parser().Parse(text.NewReader(source)), func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			visit(node)
		}
		return ast.WalkContinue, nil
	}))
}
