// Package plain makes text that comes from a lab, or from a stored run of another person,
// safe to print: on a terminal, which obeys control characters, and in Markdown, where
// text can end a block, hide what follows, load a picture or notify a person.
package plain

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
)

// isControl reports whether a character moves, hides or reorders text instead of being
// shown: controls (C0 and C1), and formats such as changes of the direction.
func isControl(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co) || r == unicode.ReplacementChar
}

// Text is text of several lines. Control characters other than tabs and ends of lines
// are shown as Go writes them, such as \x1b.
func Text(text string) string { return escaped(text, "\n\t") }

// Line is text on one line: ends of lines and tabs become spaces.
func Line(text string) string {
	return escaped(strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ").Replace(text), "")
}

// escaped shows control characters as Go writes them, but for the exceptions.
func escaped(text, exceptions string) string {
	if strings.IndexFunc(text, isControl) < 0 {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		switch {
		case !isControl(r) || strings.ContainsRune(exceptions, r):
			out.WriteRune(r)
		case r == unicode.ReplacementChar: // also of a byte that is no UTF-8
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case r < 0x100:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// JSON is JSON with each control character written as \uXXXX, which says the same.
func JSON(text []byte) []byte {
	if bytes.IndexFunc(text, isControl) < 0 {
		return text
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case !isControl(r) || r == '\n' || r == '\t' || r == '\r': // between values; in strings they are escaped
			out.WriteRune(r)
		default:
			for _, half := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&out, `\u%04x`, half)
			}
		}
	}
	return out.Bytes()
}

// colour is a sequence that package display writes: reset, bold, faint, red, green or yellow.
var colour = regexp.MustCompile(`\x1b\[(?:0|1|2|31|32|33)m`)

// Coloured is Text that keeps the colours of package display.
func Coloured(text string) string {
	var out strings.Builder
	at := 0
	for _, found := range colour.FindAllStringIndex(text, -1) {
		out.WriteString(Text(text[at:found[0]]) + text[found[0]:found[1]])
		at = found[1]
	}
	return out.String() + Text(text[at:])
}

// Writer is a writer whose text goes through Text. A write holds whole characters, as
// the functions of package fmt do.
func Writer(to io.Writer) io.Writer { return writer{to} }

type writer struct{ to io.Writer }

func (w writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.to, Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

var (
	fences = regexp.MustCompile("`{3,}|~{3,}")
	// mention is what trackers take for a person or a team: @ that no word precedes.
	mention = regexp.MustCompile(`(^|[^A-Za-z0-9_` + "`" + `])@([A-Za-z0-9])`)
	tag     = regexp.MustCompile(`<([A-Za-z/!?])`)
	link    = regexp.MustCompile(`\]([(\[:])`)
	// block is what begins a heading, a quotation, a rule or a table on a line of its own.
	block = regexp.MustCompile(`(?m)^(\s*)([#>|=+]|-{3})`)
)

// Markdown is text in Markdown: it stays text. It begins no fence, tag, link or heading,
// and mentions nobody.
func Markdown(text string) string {
	text = Text(text)
	text = fences.ReplaceAllStringFunc(text, func(f string) string { return strings.Repeat("'", len(f)) })
	text = tag.ReplaceAllString(text, "&lt;$1")
	text = link.ReplaceAllString(text, `\]$1`)
	text = block.ReplaceAllString(text, `$1\$2`)
	return mention.ReplaceAllString(text, "$1@&#8203;$2") // a space of no width
}

// Cell is Markdown in a cell of a table.
func Cell(text string) string {
	return strings.NewReplacer(`\|`, `\|`, "|", `\|`, "\n", "<br>").Replace(Markdown(text))
}

// Inline is text on one line in Markdown, with each character escaped that has a meaning in it.
func Inline(text string) string {
	return mention.ReplaceAllString(inline.Replace(Line(text)), "$1@&#8203;$2")
}

var inline = strings.NewReplacer(
	`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "~", `\~`, "<", "&lt;", ">", "&gt;", "[", `\[`, "]", `\]`,
)

// Code is text on one line in a span of code, which mentions nobody.
func Code(text string) string { return "`" + strings.ReplaceAll(Line(text), "`", "'") + "`" }

// Fenced is text of several lines in a block of code.
func Fenced(text string) string {
	return "```\n" + fences.ReplaceAllStringFunc(Text(text), func(f string) string { return strings.Repeat("'", len(f)) }) + "\n```\n"
}
