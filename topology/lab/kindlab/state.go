package kindlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StateDir holds one folder for each lab, with its kubeconfigs and sockets, and the
// labs' locks. Like running containers, it does not survive a reboot.
const StateDir = "/run/relapse"

// isName reports whether a lab's name is safe in paths and labels. The validation
// of a topology is stricter.
func isName(lab string) bool {
	return lab != "" && strings.Trim(lab, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func stateDir(lab string) string { return filepath.Join(StateDir, lab) }

// HeldError says that another process holds a lab. The lab's lock file has its other fields.
type HeldError struct {
	Lab     string    `json:"-"`
	PID     int       `json:"pid"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
}

// HeldByOther identifies the error to packages that do not import this one.
func (e *HeldError) HeldByOther() bool { return true }

func (e *HeldError) Error() string {
	return fmt.Sprintf("lab %q is held by process %d (%s) since %s: wait for it to end, or interrupt it",
		e.Lab, e.PID, e.Command, e.Since.Format(time.TimeOnly))
}

// RelapseStatus is 3: the machine cannot run it.
func (*HeldError) RelapseStatus() int { return 3 }

// lockedHere are the names of the labs that this process has locked since it began.
var lockedHere sync.Map

// lock locks a lab for this process. The kernel releases the lock when the process
// ends. killed reports whether the previous holder ended without unlocking it.
// Everything that creates or removes a lab begins here, so the name is checked
// here: with a name such as "../x" Down would remove a folder outside StateDir.
func lock(lab string) (unlock func(), killed bool, err error) {
	if !isName(lab) {
		return nil, false, fmt.Errorf("%q is not a lab name: expected lower-case letters, digits and dashes", lab)
	}
	if err := os.MkdirAll(StateDir, 0o700); err != nil {
		return nil, false, fmt.Errorf("creating the folder of the labs' state: %w", err)
	}
	path := filepath.Join(StateDir, lab+".lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("opening the lock of lab %q: %w", lab, err)
	}
	h := HeldError{Lab: lab} // the previous one
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, false, fmt.Errorf("locking lab %q: %w", lab, err)
		}
		_ = json.NewDecoder(file).Decode(&h) // the lab is held even if the file cannot be read
		return nil, false, &h
	}
	killed = json.NewDecoder(file).Decode(&h) == nil
	text, err := json.Marshal(HeldError{PID: os.Getpid(), Command: strings.Join(os.Args, " "), Since: time.Now()})
	if err = errors.Join(err, file.Truncate(0)); err == nil {
		_, err = file.WriteAt(text, 0)
	}
	if err != nil {
		file.Close()
		return nil, false, fmt.Errorf("writing the lock of lab %q: %w", lab, err)
	}
	lockedHere.Store(lab, true)
	// The file is not removed: two processes could lock two files of one name.
	return func() {
		_ = file.Truncate(0) // if this fails, the next removal only takes longer
		file.Close()
	}, killed, nil
}
