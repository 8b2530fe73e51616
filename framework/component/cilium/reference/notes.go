package reference

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
)

// Note is an item of the vendor's upgrade notes.
type Note struct {
	// Section is the heading above it, such as "Removed Options"; empty if there is none.
	Section string
	Text    string // in one line
}

// title is the heading of a minor's notes, section a heading of the same level, underline the line below a heading.
var (
	title     = regexp.MustCompile(`(?m)^(\d+\.\d+|\|CURRENT_RELEASE\|) Upgrade Notes\n-+$`)
	section   = regexp.MustCompile(`(?m)^\S.*\n-{3,}$`)
	underline = regexp.MustCompile(`^[~#^"]{3,}$`)
)

// Notes reads the upgrade notes of a minor from the vendor's documentation: from 1.20 on they are a file of their own.
func Notes(folder string) ([]Note, error) {
	missing := fs.ErrNotExist
	for _, name := range []string{"upgrade.rst", "upgrade-current.inc"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("reading the vendor's upgrade notes: %w", err)
			}
			continue
		}
		missing = nil
		if at := title.FindIndex(text); at != nil {
			text = text[at[1]:]
			if next := section.FindIndex(text); next != nil {
				text = text[:next[0]]
			}
			return parseNotes(string(text)), nil
		}
	}
	if missing != nil {
		return nil, fmt.Errorf("reading the vendor's upgrade notes in %s: %w", folder, missing)
	}
	return nil, fmt.Errorf("reading the vendor's upgrade notes: no file in %s has the heading \"... Upgrade Notes\"", folder)
}

func parseNotes(text string) []Note {
	var all []Note
	var item []string
	var heading, last string
	flush := func() {
		if len(item) > 0 {
			all = append(all, Note{heading, strings.Join(item, " ")})
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
		case underline.MatchString(trimmed):
			flush()
			heading = last
		case !indented:
			flush()
		case strings.HasPrefix(trimmed, ".. "):
			code = true
		case len(item) > 0 && !(code && strings.HasPrefix(line, "    ")):
			item, code = append(item, trimmed), false
		}
		last = trimmed
	}
	flush()
	return all
}

// fullStop matches a full stop, together with an abbreviation that ends in it.
var fullStop = regexp.MustCompile(`(i\.e|e\.g)?\. +`)

func sentences(text string) []string {
	var all []string
	begin := 0
	for _, at := range fullStop.FindAllStringSubmatchIndex(text, -1) {
		if at[2] >= 0 {
			continue
		}
		all, begin = append(all, text[begin:at[0]]), at[1]
	}
	return append(all, text[begin:])
}

// Quote returns the sentences of notes that name a key, a flag or a value.
func Quote(notes []Note, name string) string {
	// Names stand in double backquotes, flags with their dashes and maybe with a value.
	named := regexp.MustCompile("``(?:--)?" + regexp.QuoteMeta(name) + "(?:[=:][^`]*)?``")
	var all []string
	for _, n := range notes {
		for _, s := range sentences(n.Text) {
			if named.MatchString(s) {
				all = append(all, plain(s))
			}
		}
	}
	return strings.Join(all, " ")
}

// plain is a sentence without the marks of its markup.
func plain(sentence string) string {
	return strings.ReplaceAll(strings.TrimSuffix(sentence, "."), "``", "`") + "."
}

var (
	// aboutNothing matches the headings of items that are not about keys that a configuration has already.
	aboutNothing = regexp.MustCompile(`^New Options|Metrics|CRD|API Fields|Commands`)
	// subjects matches the names that a sentence is about: it begins with them after a few words.
	subjects = regexp.MustCompile("^(?:[^` ]+ ){0,7}[^` ]*(``[^`]+``(?: \\([^)]*\\))?" +
		"(?:(?:,? and|,? or|,|/) *(?:the )?``[^`]+``(?: \\([^)]*\\))?)*)")
	// otherwise matches the beginning of a sentence on what to do with other keys.
	otherwise = regexp.MustCompile(`^(?:To|See) `)
	aName     = regexp.MustCompile("``(?:--)?([a-z0-9][a-z0-9-]*)(?:[=: ][^`]*)?``")
)

// aboutKeys returns what notes say of keys: of each item that is about keys, the sentences that name them. An item in a
// section of removed options begins with the section's name.
func aboutKeys(notes []Note) []configdrift.Note {
	var all []configdrift.Note
	for _, n := range notes {
		if aboutNothing.MatchString(n.Section) {
			continue
		}
		var keys, says []string
		for _, s := range sentences(n.Text) {
			names := subjects.FindStringSubmatch(s)
			if names == nil || otherwise.MatchString(s) {
				continue
			}
			for _, name := range aName.FindAllStringSubmatch(names[1], -1) {
				keys = append(keys, name[1])
			}
		}
		if len(keys) == 0 {
			continue
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		for _, s := range sentences(n.Text) {
			named := aName.FindAllStringSubmatch(s, -1)
			if slices.ContainsFunc(named, func(name []string) bool { return slices.Contains(keys, name[1]) }) {
				says = append(says, plain(s))
			}
		}
		if strings.Contains(n.Section, "Removed") {
			says[0] = n.Section + ": " + says[0]
		}
		all = append(all, configdrift.Note{Keys: keys, Says: strings.Join(says, " ")})
	}
	return all
}
