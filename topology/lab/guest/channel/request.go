package channel

import (
	"bufio"
	"encoding/binary"
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

// Kind is the kind of a frame's content.
type Kind byte

// Kinds of a frame.
const (
	Input  Kind = iota // machine to guest: standard input; an empty frame ends it
	Stdout             // guest to machine
	Stderr             // guest to machine
	Exit               // guest to machine: an ExitStatus in JSON, the last frame
)

// ExitStatus is the result of a command.
type ExitStatus struct {
	// Status is the exit status, or 128 plus the number of the signal that ended the command.
	Status int `json:"status"`
	// Error says why the command could not be started; empty if it was.
	Error string `json:"error,omitempty"`
}

// frameLimit bounds a frame's content, in bytes.
const frameLimit = 1 << 16

// WriteFrame writes content as one frame, or as several if it is longer than frameLimit.
func WriteFrame(w io.Writer, kind Kind, content []byte) error {
	for first := true; first || len(content) > 0; first = false {
		part := content[:min(len(content), frameLimit)]
		content = content[len(part):]
		frame := make([]byte, 0, 5+len(part))
		frame = append(frame, byte(kind))
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(part)))
		if _, err := w.Write(append(frame, part...)); err != nil {
			return err
		}
	}
	return nil
}

// ReadFrame reads one frame.
func ReadFrame(r io.Reader) (Kind, []byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if length > frameLimit {
		return 0, nil, fmt.Errorf("frame of %d bytes: expected %d at most", length, frameLimit)
	}
	content := make([]byte, length)
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, err
	}
	return Kind(header[0]), content, nil
}
