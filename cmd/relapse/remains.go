package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// remains returns an error that names the labs that this process has left, besides those of before,
// which it may have used again.
func remains(before []string) error {
	labs, err := kindlab.OwnWithState()
	labs = slices.DeleteFunc(labs, func(lab string) bool { return slices.Contains(before, lab) })
	if names := strings.Join(labs, " "); names != "" {
		err = errors.Join(err, fmt.Errorf("left on this machine: parts of %s; remove them: relapse down %[1]s", names))
	}
	return err
}

// oneSignal is how long a second signal is taken for the first one: timeout and make send it to
// a process and to its group.
const oneSignal = time.Second

func endAtNextSignal(before []string) {
	first, again := time.Now(), make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	for range again {
		if time.Since(first) < oneSignal {
			continue
		}
		fmt.Fprintln(os.Stderr, "relapse: interrupted again, and ended at once")
		if err := remains(before); err != nil {
			fmt.Fprintln(os.Stderr, "relapse:", err)
		}
		os.Exit(exitInterrupted)
	}
}
