package channel

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Request is what a stream is for: the line that it begins with. Exactly one
// of its fields is set.
type Request struct {
	// Exec runs a command. From then on both ends send frames.
	Exec []string `json:"exec,omitempty"`
	// Dial connects the stream to the unix socket with this path in the
	// guest. The agent answers with a Reply; then the stream is the socket's.
	Dial string `json:"dial,omitempty"`
	// Forward, which the launcher answers and not the agent, makes the unix
	// socket with this path in the guest available on the machine. The Reply
	// names it.
	Forward string `json:"forward,omitempty"`
}

// Reply answers a Request that is not a command.
type Reply struct {
	// Error says why there is no connection; empty if there is one.
	Error string `json:"error,omitempty"`
	// Socket is the file name of the forwarded socket, in the folder of the
	// launcher's own.
	Socket string `json:"socket,omitempty"`
}

// WriteLine writes a Request or Reply.
func WriteLine(w io.Writer, line any) error {
	return json.NewEncoder(w).Encode(line)
}

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

// Kind says what a frame holds.
type Kind byte

// Kinds of a frame.
const (
	Input  Kind = iota // machine to guest: standard input; an empty frame is its end
	Stdout             // guest to machine
	Stderr             // guest to machine
	Exit               // guest to machine: an ExitStatus in JSON, the last frame
)

// ExitStatus is how a command ended.
type ExitStatus struct {
	// Status is the exit status, 128 and the signal's number if a signal
	// ended the command.
	Status int `json:"status"`
	// Error says why the command could not be started; empty otherwise.
	Error string `json:"error,omitempty"`
}

// frameLimit bounds a frame's content, in bytes: no reader has to hold more.
const frameLimit = 1 << 16

// WriteFrame writes one frame, or several where content is longer than a
// frame may be.
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
		return 0, nil, fmt.Errorf("frame of %d bytes; %d are allowed", length, frameLimit)
	}
	content := make([]byte, length)
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, err
	}
	return Kind(header[0]), content, nil
}
