package plain_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestText(t *testing.T) {
	for _, test := range []struct{ name, input, text, line, coloured string }{
		{"text", "node1 → node2,\tß\n", "node1 → node2,\tß\n", "node1 → node2, ß ", "node1 → node2,\tß\n"},
		{"the title of the window", "\x1b]0;owned\a", `\x1b]0;owned\x07`, `\x1b]0;owned\x07`, `\x1b]0;owned\x07`},
		{"a line that hides another", "FAIL\rPASS", `FAIL\x0dPASS`, `FAIL\x0dPASS`, `FAIL\x0dPASS`},
		{"colours", "\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`, `\x1b[31mred\x1b[0m`, "\x1b[31mred\x1b[0m"},
		{"hidden text", "\x1b[8mhidden", `\x1b[8mhidden`, `\x1b[8mhidden`, `\x1b[8mhidden`},
		{"C1", "\u009b2J", `\x9b2J`, `\x9b2J`, `\x9b2J`},
		{"no UTF-8", "a\x9bb", `a\x9bb`, `a\x9bb`, `a\x9bb`},
		{"another direction", "a\u202eb", `a\u202eb`, `a\u202eb`, `a\u202eb`},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "Text", test.text, plain.Text(test.input))
			must.Equal(t, "Line", test.line, plain.Line(test.input))
			must.Equal(t, "Coloured", test.coloured, plain.Coloured(test.input))
			var to bytes.Buffer
			must.Equal(t, "written", len(test.input), must.Get(fmt.Fprint(plain.Writer(&to), test.input))(t))
			must.Equal(t, "written", test.text, to.String())
		})
	}
}

func TestMarkdown(t *testing.T) {
	for _, test := range []struct{ name, input, want string }{
		{"text", "tor1 -> 10.4.94.23 (node1), `kubectl` & a@b", "tor1 -> 10.4.94.23 (node1), `kubectl` & a@b"},
		{"a fence", "a\n```\nb", "a\n'''\nb"},
		{"a fence of tildes", "~~~~", "''''"},
		{"a mention", "@octocat, (@org/team)", "@&#8203;octocat, (@&#8203;org/team)"},
		{"a comment", "<!-- hidden", "&lt;!-- hidden"},
		{"a picture", "![x](https://example.org/)", `![x\](https://example.org/)`},
		{"a heading", "a\n## b\n---\n> c", "a\n\\## b\n\\---\n\\> c"},
		{"a control", "\x1b[2J", `\x1b[2J`},
	} {
		must.Equal(t, test.name, test.want, plain.Markdown(test.input))
	}
	must.Equal(t, "a cell", `a\|b<br>\x1b`, plain.Cell("a|b\n\x1b"))
	must.Equal(t, "code", "`a'@b' '''`", plain.Code("a`@b`\n```"))
	must.Equal(t, "in a line", `\*a\* \[b\](c) @&#8203;d`, plain.Inline("*a* [b](c) @d"))
}

var notPrinted = regexp.MustCompile("[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f]")

func FuzzMarkdown(f *testing.F) {
	f.Add("a\n```\n@octocat <!-- \x1b[2J")
	f.Fuzz(func(t *testing.T, text string) {
		for _, got := range []string{plain.Markdown(text), plain.Cell(text), plain.Inline(text), plain.Code(text)} {
			if notPrinted.MatchString(got) || strings.Contains(got, "```") || strings.Contains(got, "~~~") {
				t.Errorf("%q becomes %q", text, got)
			}
		}
		if code := plain.Fenced(text); strings.Count(code, "```") != 2 {
			t.Errorf("%q in a block is %q", text, code)
		}
	})
}

// A terminal is sent no control character, and a program reads the same value.
func TestJSON(t *testing.T) {
	for _, value := range []string{"a", "a\x1b[2J\u009b2J\u202eb\x7f", "\U000f0000 and \ufffd", "<a>\n\t"} {
		text := must.Get(json.MarshalIndent(map[string]string{"name": value}, "", "  "))(t)
		var got map[string]string
		must.NoError(t, json.Unmarshal(plain.JSON(text), &got))
		must.Equal(t, "read back", value, got["name"])
		must.Equal(t, "as a terminal gets it", string(plain.JSON(text)), plain.Text(string(plain.JSON(text))))
	}
}
