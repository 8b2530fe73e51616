package snapshot

import (
	"strings"

	"github.com/relapse-dev/relapse/topology/each"
)

// Missing is something that was not read.
type Missing struct {
	Source string
	Reason string
}

// Forbidden reports whether RBAC does not permit to read it.
func (m Missing) Forbidden() bool { return strings.Contains(m.Reason, NotPermitted) }

// String is SOURCE: REASON.
func (m Missing) String() string { return m.Source + ": " + m.Reason }

// MarshalText implements encoding.TextMarshaler, as String does it.
func (m Missing) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. No source has a colon and a space in its name.
func (m *Missing) UnmarshalText(text []byte) error {
	m.Source, m.Reason, _ = strings.Cut(string(text), ": ")
	return nil
}

// Sentences joins what was not read, in one line.
func Sentences(all []Missing) string {
	return each.Joined(all, "; ", Missing.String)
}
