package display

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/await"
)

// message is one event that a process sends to the process that draws all runs on one
// terminal. One of its parts is set.
type message struct {
	Plan  []planned        `json:"plan,omitempty"`
	Begin *stepNumber      `json:"begin,omitempty"`
	End   *stepNumber      `json:"end,omitempty"`
	Over  *stepName        `json:"over,omitempty"`
	Waits *await.Sight     `json:"waits,omitempty"`
	Found []detect.Finding `json:"found,omitempty"`
	Loses *[]string        `json:"loses,omitempty"`
	Note  string           `json:"note,omitempty"`
	Scope string           `json:"scope,omitempty"` // of events without one of their own
	// Failed and Skipped say why a step failed, or was skipped.
	Failed  string `json:"failed,omitempty"`
	Skipped string `json:"skipped,omitempty"`
}

type stepName struct{ Scope, Name string }

type planned struct {
	stepName
	ID framework.StepID `json:",omitzero"`
}

type stepNumber struct {
	Number int
	stepName
}

// sender is the engine.Progress of a process that runs in parallel with others: it sends
// each event. Events that cannot be sent are lost: the run continues.
type sender struct {
	mu    *sync.Mutex
	out   *json.Encoder
	steps *int
}

func newSender(out io.Writer) sender {
	return sender{new(sync.Mutex), json.NewEncoder(out), new(int)}
}

// SenderTo sends to an open file of this process, which processes that it starts do not
// inherit.
func SenderTo(fd int) engine.Progress {
	syscall.CloseOnExec(fd)
	return newSender(os.NewFile(uintptr(fd), "progress"))
}

func (s sender) send(m message, err error) {
	var skip *engine.Skipped
	if errors.As(err, &skip) {
		m.Skipped = skip.Why
	} else if err != nil {
		m.Failed = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(m)
}

func (s sender) Scenario(string) engine.Progress { return s } // it runs one

func (s sender) Plan(steps []engine.Step) {
	m := message{}
	for _, step := range steps {
		m.Plan = append(m.Plan, planned{stepName{step.Scope, step.Name}, step.ID})
	}
	s.send(m, nil)
}

func (s sender) Step(scope, name string) func(error) {
	s.mu.Lock()
	*s.steps++
	step := &stepNumber{*s.steps, stepName{scope, name}}
	s.mu.Unlock()
	s.send(message{Begin: step}, nil)
	return func(err error) { s.send(message{End: step}, err) }
}

func (s sender) Over(scope, name string, err error) {
	s.send(message{Over: &stepName{scope, name}}, err)
}
func (s sender) Waits(scope string, w await.Sight) { s.send(message{Scope: scope, Waits: &w}, nil) }
func (s sender) Found(scope string, f []detect.Finding) {
	s.send(message{Scope: scope, Found: f}, nil)
}
func (s sender) Loses(scope string, probes []string) {
	s.send(message{Scope: scope, Loses: &probes}, nil)
}
func (s sender) Note(scope, text string) { s.send(message{Scope: scope, Note: text}, nil) }

// Receive passes to progress what a sender sends, until its end.
func Receive(from io.Reader, p engine.Progress) error {
	ends := map[int]func(error){}
	for in := json.NewDecoder(from); ; {
		var m message
		if err := in.Decode(&m); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the progress of a parallel run: %w", err)
		}
		var err error
		switch {
		case m.Skipped != "":
			err = &engine.Skipped{Why: m.Skipped}
		case m.Failed != "":
			err = errors.New(m.Failed)
		}
		switch {
		case m.Plan != nil:
			var steps []engine.Step
			for _, s := range m.Plan {
				steps = append(steps, engine.Step{Scope: s.Scope, ID: s.ID, Name: s.Name})
			}
			p.Plan(steps)
		case m.Begin != nil:
			ends[m.Begin.Number] = p.Step(m.Begin.Scope, m.Begin.Name)
		case m.End != nil:
			if end := ends[m.End.Number]; end != nil {
				end(err)
			}
			delete(ends, m.End.Number)
		case m.Over != nil:
			p.Over(m.Over.Scope, m.Over.Name, err)
		case m.Waits != nil:
			p.Waits(m.Scope, *m.Waits)
		case m.Found != nil:
			p.Found(m.Scope, m.Found)
		case m.Loses != nil:
			p.Loses(m.Scope, *m.Loses)
		default:
			p.Note(m.Scope, m.Note)
		}
	}
}
