package channel

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Request is the first line of a stream. Exactly one of its fields is set.
type Request struct {
	// Exec runs a command. Both sides then send frames.
	Exec []string `json:"exec,omitempty"`
	// Dial connects the stream to the guest's unix socket with this path. The agent
	// sends a Reply before the socket's data.
	Dial string `json:"dial,omitempty"`
	// Forward makes the guest's unix socket with this path available on the machine.
	// The launcher answers it, with a Reply that has the socket's name.
	Forward string `json:"forward,omitempty"`
}

// Reply is the answer to a Request that is no command.
type Reply struct {
	// Error says why the request failed; empty if it did not.
	Error string `json:"error,omitempty"`
	// Socket is the file name of the forwarded socket in the launcher's folder.
	Socket string `json:"socket,omitempty"`
}

// WriteLine writes a Request or Reply.
func WriteLine(w io.Writer, line any) error { return json.NewEncoder(w).Encode(line) }

// ReadLine reads a Request or Reply. It may read ahead in r.
func ReadLine(r *bufio.Reader, line any) error {
	text, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, line); err != nil {
		return fmt.Errorf("reading %q: %w", text, err)
	}
	return nil
}

// Frame is a message of a command, in gob.
type Frame struct {
	Input          []byte      // machine to guest; a frame without any ends the standard input
	Stdout, Stderr []byte      // guest to machine
	Exit           *ExitStatus // guest to machine, in the last frame
}

// ExitStatus is the result of a command.
type ExitStatus struct {
	// Status is the exit status, or 128 plus the number of the signal that ended the command.
	Status int
	// Error says why the command could not be started; empty if it was.
	Error string
}

// FrameWriter sends what is written to it.
type FrameWriter func([]byte) error

func (send FrameWriter) Write(p []byte) (int, error) {
	if err := send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}
