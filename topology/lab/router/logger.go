package router

import (
	"fmt"
	"log"
	"maps"
	"slices"
	"strings"

	bgplog "github.com/osrg/gobgp/v3/pkg/log"
)

// bgpLogger writes GoBGP's warnings and errors as plain lines. It drops other
// messages: the server logs sessions itself.
type bgpLogger struct {
	log   *log.Logger
	fatal func(error)
}

// Panic logs, and ends the router.
func (l *bgpLogger) Panic(msg string, fields bgplog.Fields) { l.Fatal(msg, fields) }

// Fatal shuts the router down. GoBGP expects the end of the process, which would
// leave routes behind.
func (l *bgpLogger) Fatal(msg string, fields bgplog.Fields) {
	l.fatal(fmt.Errorf("GoBGP: %s", line(msg, fields)))
}

// Error logs.
func (l *bgpLogger) Error(msg string, fields bgplog.Fields) {
	l.log.Printf("GoBGP: error: %s", line(msg, fields))
}

// Warn logs.
func (l *bgpLogger) Warn(msg string, fields bgplog.Fields) {
	l.log.Printf("GoBGP: warning: %s", line(msg, fields))
}

// Info does nothing.
func (l *bgpLogger) Info(string, bgplog.Fields) {}

// Debug does nothing.
func (l *bgpLogger) Debug(string, bgplog.Fields) {}

// SetLevel does nothing: the level is fixed.
func (l *bgpLogger) SetLevel(bgplog.LogLevel) {}

func (l *bgpLogger) GetLevel() bgplog.LogLevel { return bgplog.WarnLevel }

// line is a message with its fields, sorted by name.
func line(msg string, fields bgplog.Fields) string {
	var b strings.Builder
	b.WriteString(msg)
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		fmt.Fprintf(&b, " %s=%v", k, fields[k])
	}
	return b.String()
}
