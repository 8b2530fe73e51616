package snapshot

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

type labelTest func(labels map[string]string) bool

// calicoWord is one word of a selector of Calico: a bracket, an operator, a text in quotes, or a name.
var calicoWord = regexp.MustCompile(`^\s*(\(|\)|\{|\}|,|&&|\|\||==|!=|!|'[^']*'|"[^"]*"|[A-Za-z0-9_./-]+)`)

// calicoSelector reads a selector of Calico (libcalico-go/lib/selector), such as has(rack) && role in {'a', 'b'}, and
// returns the labels that it names, in order.
func calicoSelector(text string) (test labelTest, labels []string, err error) {
	if strings.TrimSpace(text) == "" {
		text = "all()"
	}
	p := selectorParser{}
	for rest := text; strings.TrimSpace(rest) != ""; {
		m := calicoWord.FindStringSubmatch(rest)
		if m == nil {
			return nil, nil, fmt.Errorf("%q: unexpected %q", text, strings.TrimSpace(rest))
		}
		p.words, rest = append(p.words, m[1]), rest[len(m[0]):]
	}
	test = p.either()
	if p.err == nil && len(p.words) > 0 {
		p.err = fmt.Errorf("unexpected %q", p.words[0])
	}
	if p.err != nil {
		return nil, nil, fmt.Errorf("%q: %w", text, p.err)
	}
	slices.Sort(p.labels)
	return test, slices.Compact(p.labels), nil
}

// selectorParser has the words that are left, and the labels that were read so far.
type selectorParser struct {
	words, labels []string
	err           error
}

// next is the next word; empty at the end, which is an error.
func (p *selectorParser) next() string {
	if len(p.words) == 0 {
		p.err = errors.New("it ends too early")
		return ""
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word
}

func (p *selectorParser) takes(word string) bool {
	matches := len(p.words) > 0 && p.words[0] == word
	if matches {
		p.words = p.words[1:]
	}
	return matches
}

func (p *selectorParser) expect(word string) {
	if got := p.next(); got != word && p.err == nil {
		p.err = fmt.Errorf("expected %s, got %q", word, got)
	}
}

func (p *selectorParser) either() labelTest {
	test := p.both()
	for p.takes("||") {
		a, b := test, p.both()
		test = func(l map[string]string) bool { return a(l) || b(l) }
	}
	return test
}

func (p *selectorParser) both() labelTest {
	test := p.one()
	for p.takes("&&") {
		a, b := test, p.one()
		test = func(l map[string]string) bool { return a(l) && b(l) }
	}
	return test
}

func (p *selectorParser) one() labelTest {
	switch word := p.next(); word {
	case "!":
		test := p.one()
		return func(l map[string]string) bool { return !test(l) }
	case "(":
		test := p.either()
		p.expect(")")
		return test
	case "all", "global":
		p.expect("(")
		p.expect(")")
		return func(map[string]string) bool { return word == "all" }
	case "has":
		p.expect("(")
		label := p.next()
		p.labels = append(p.labels, label)
		p.expect(")")
		return func(l map[string]string) bool { _, there := l[label]; return there }
	default:
		return p.comparison(word)
	}
}

// comparison compares a label with texts. A missing label equals none of them.
func (p *selectorParser) comparison(label string) labelTest {
	p.labels = append(p.labels, label)
	text := func() string { return strings.Trim(p.next(), `'"`) }
	switch operator := p.next(); operator {
	case "==":
		value := text()
		return func(l map[string]string) bool { actual, there := l[label]; return there && actual == value }
	case "!=":
		value := text()
		return func(l map[string]string) bool { actual, there := l[label]; return !there || actual != value }
	case "contains":
		value := text()
		return func(l map[string]string) bool {
			actual, there := l[label]
			return there && strings.Contains(actual, value)
		}
	case "starts", "ends", "startswith", "endswith":
		if !strings.HasSuffix(operator, "with") {
			p.expect("with")
		}
		value, has := text(), strings.HasPrefix
		if strings.HasPrefix(operator, "ends") {
			has = strings.HasSuffix
		}
		return func(l map[string]string) bool { actual, there := l[label]; return there && has(actual, value) }
	case "in", "not", "notin":
		if operator == "not" {
			p.expect("in")
		}
		p.expect("{")
		var values []string
		for p.err == nil && !p.takes("}") {
			values = append(values, text())
			p.takes(",")
		}
		return func(l map[string]string) bool {
			actual, there := l[label]
			return (there && slices.Contains(values, actual)) == (operator == "in")
		}
	default:
		if p.err == nil {
			p.err = fmt.Errorf("expected a comparison, got %q", operator)
		}
		return nil
	}
}
