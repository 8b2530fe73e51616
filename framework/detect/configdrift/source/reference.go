package source

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stated is a flag in the vendor's reference: its type in pflag's words, and its default as pflag
// prints it; empty if that is the type's zero.
type stated struct{ kind, value string }

// reference returns the flags of a program, as it prints them for the vendor's documentation.
func reference(folder, program string) (map[string]stated, error) {
	text, err := os.ReadFile(filepath.Join(folder, program+".md"))
	if err != nil {
		return nil, fmt.Errorf("reading the vendor's reference of commands: %w", err)
	}
	flags := parseHelp(string(text))
	if len(flags) == 0 {
		return nil, fmt.Errorf("reading the vendor's reference of commands: %s has no flags", program)
	}
	return flags, nil
}

// flag is a line of a program's help: name, type unless it is a bool, and description.
var flag = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9][a-z0-9-]*)(?: (\S+))?  +(.*)$`)

// byDefault is the end of a description.
var byDefault = regexp.MustCompile(`.*\(default (.*)\)$`)

// helpTypes are the words for types in help that are not pflag's own names of them.
var helpTypes = map[string]string{
	"": "bool", "strings": "stringSlice", "ints": "intSlice", "uints": "uintSlice", "durations": "durationSlice", "float": "float64",
}

// NotKeys are flags that are no keys: they say where the configuration is, or end the program.
var NotKeys = []string{"config", "config-dir", "cmdref", "help", "version"}

// parseHelp returns the flags of a program's help that are keys.
func parseHelp(help string) map[string]stated {
	flags := map[string]stated{}
	for _, found := range flag.FindAllStringSubmatch(help, -1) {
		if slices.Contains(NotKeys, found[1]) {
			continue
		}
		s := stated{kind: found[2]}
		if kind, ok := helpTypes[s.kind]; ok {
			s.kind = kind
		}
		if given := byDefault.FindStringSubmatch(found[3]); given != nil {
			s.value = parseDefault(s.kind, given[1])
		}
		flags[found[1]] = s
	}
	return flags
}

// parseDefault returns a default as pflag prints it in help, which quotes texts; empty for one that is
// of another form: then the description itself ends so, and pflag adds nothing to it, because the
// default is the type's zero.
func parseDefault(kind, text string) string {
	var err error
	switch {
	case kind == "string":
		text, err = strconv.Unquote(text)
	case kind == "bool":
		_, err = strconv.ParseBool(text)
	case kind == "duration":
		_, err = time.ParseDuration(text)
	case strings.HasSuffix(kind, "Slice"), kind == "stringToString":
		if !strings.HasPrefix(text, "[") {
			return ""
		}
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		_, err = strconv.ParseInt(text, 10, 64)
	case strings.HasPrefix(kind, "float"):
		_, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		return ""
	}
	return text
}
