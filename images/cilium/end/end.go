// Package end is how a slice ends its program, so that a reader of its log can tell
// whose reason it was.
//
// A fatal message of the slice itself bears the field Field. It says nothing about the
// vendor's version: the slice lacks a part, the API server does not answer, a compiler
// fails. No message of the vendor's bears the field, whose name has the project's domain
// and is written without quotes, as no value of another field can be.
//
// What the vendor's checks of the configuration return ends the program with the message
// of the vendor's agent, and without the field.
//
// The reader is framework/component/cilium/agentlog, in another module. Both are tested
// with the messages in testdata.
package end

import (
	"errors"

	"github.com/cilium/cilium/pkg/logging"
	"github.com/cilium/cilium/pkg/logging/logfields"
)

// Field and Slice are the mark.
const (
	Field = "relapse.dev/end"
	Slice = "slice"
)

// refusal is an error of the vendor's checks of the configuration.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Refused marks an error by which the vendor's checks of the configuration end its
// agent. They are called by NewDaemon in daemon/cmd/daemon.go, and the error must have
// the text that NewDaemon gives it.
func Refused(err error) error { return refusal{err} }

// With ends the program. An error that Refused has marked is reported as runDaemon does
// it (daemon/cmd/daemon_main.go); any other one as message, with the mark.
func With(message string, err error) {
	log := logging.DefaultLogger.WithError(err)
	if errors.As(err, &refusal{}) {
		log.WithField(logfields.LogSubsys, "daemon").Fatal("Error while creating daemon")
	}
	log.WithField(logfields.LogSubsys, "slice").WithField(Field, Slice).Fatal(message)
}
