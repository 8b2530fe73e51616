package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Note is an item of the vendor's upgrade notes, in one line.
type Note string

// title is the heading of a minor's notes, and section any heading of that level.
var (
	title   = regexp.MustCompile(`(?m)^(\d+\.\d+|\|CURRENT_RELEASE\|) Upgrade Notes\n-+$`)
	section = regexp.MustCompile(`(?m)^\S.*\n-{3,}$`)
)

// Notes reads the upgrade notes of a minor from a folder of the vendor's documentation.
// From 1.20 on they are in a file of their own, which upgrade.rst includes.
func Notes(folder string) ([]Note, error) {
	var text []byte
	var at []int
	for _, name := range []string{"upgrade.rst", "upgrade-current.inc"} {
		var err error
		if text, err = os.ReadFile(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the vendor's upgrade notes: %w", err)
		}
		if at = title.FindIndex(text); at != nil {
			break
		}
	}
	if at == nil {
		return nil, fmt.Errorf("reading the vendor's upgrade notes: no file in %s has the heading \"... Upgrade Notes\"", folder)
	}
	text = text[at[1]:]
	if next := section.FindIndex(text); next != nil {
		text = text[:next[0]]
	}
	return parseNotes(string(text)), nil
}

// parseNotes returns the items of lists. An item ends with the next one, or with a line
// that is not indented.
func parseNotes(text string) []Note {
	var all []Note
	var item []string
	flush := func() {
		if len(item) > 0 {
			all = append(all, Note(strings.Join(item, " ")))
		}
		item = nil
	}
	code := false // within an item: an example in another language
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		indented := strings.HasPrefix(line, "  ")
		switch {
		case strings.HasPrefix(line, "* "), strings.HasPrefix(line, "- "):
			flush()
			item, code = []string{strings.TrimSpace(line[2:])}, false
		case trimmed == "":
		case !indented:
			flush()
		case strings.HasPrefix(trimmed, ".. "):
			code = true
		case len(item) > 0 && !(code && strings.HasPrefix(line, "    ")):
			item, code = append(item, trimmed), false
		}
	}
	flush()
	return all
}

// sentence splits an item where a full stop ends a sentence.
var sentence = regexp.MustCompile(`\. +`)

// Quote returns the sentences of notes that name a key or a flag.
func Quote(notes []Note, key string) string {
	all, _ := naming(notes, key)
	return strings.Join(all, " ")
}

// About reports whether one of these sentences names the key before all others.
func About(notes []Note, key string) bool {
	_, about := naming(notes, key)
	return about
}

func naming(notes []Note, key string) (sentences []string, first bool) {
	// Names stand in double backquotes, flags with their dashes and maybe with a value.
	named := regexp.MustCompile("``(?:--)?" + regexp.QuoteMeta(key) + "(?:[=:][^`]*)?``")
	for _, n := range notes {
		for _, s := range sentence.Split(string(n), -1) {
			at := named.FindStringIndex(s)
			if at == nil {
				continue
			}
			first = first || at[0] == strings.Index(s, "``")
			sentences = append(sentences, strings.ReplaceAll(strings.TrimSuffix(s, "."), "``", "`")+".")
		}
	}
	return sentences, first
}
