package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// clock is the time that a variant goes by: that of the machine, which a *recorder
// tells, or that of a stored run.
type clock = probe.Clock

// tape is what a variant's run does to its lab and asks of it. While the run goes on
// it is a *recorder, which does it and writes it down; when a stored run is judged
// again it is a *player, which tells what was written.
type tape interface {
	// call does something by its name, and returns what came of it.
	call(ctx context.Context, name string, do func(context.Context) answer) answer
	// begins begins a step; it is false where the stored run did not come to its end.
	begins(step string) bool
	// ends ends it. Interrupted is whether the run's time was over.
	ends(step string, interrupted bool)
}

// answer is what came of a call, as far as the engine looks at it.
type answer struct {
	Holds   bool          `json:"holds,omitempty"`
	Saw     string        `json:"saw,omitempty"`
	Rounds  int           `json:"rounds,omitempty"`
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	Error   string        `json:"error,omitempty"`
	// Interrupted is whether the run's time was over when it returned.
	Interrupted bool `json:"interrupted,omitempty"`
	// Panicked is whether it has not returned, and Error what it said then.
	Panicked bool `json:"panicked,omitempty"`

	err error
}

// recordName is the evidence that a stored run is judged by, and recordSchema its
// form: one JSON object a line, each an entry, compressed with zstd. Each entry is on
// disk before what follows from it is judged, so that of a run that is killed the
// file holds all but an end.
const (
	recordName   = "record.jsonl.zst"
	recordSchema = "relapse.record/v1"
)

// recordWindow is how far back a look is compared with earlier ones: some hundred
// looks at a small lab, and a few at one with thousands of services.
const recordWindow = 4 << 20

// RecordEntry is a line of the record, for its schema.
type RecordEntry = entry

// entry is a line of the record. Beside the time one of its parts is there.
type entry struct {
	// At is when the entry was written, or when what it tells of was over.
	At     time.Time      `json:"at"`
	Begin  *beginEntry    `json:"begin,omitempty"`
	Step   *stepEntry     `json:"step,omitempty"`
	Call   *callEntry     `json:"call,omitempty"`
	Wait   *waitEntry     `json:"wait,omitempty"`
	Look   *lookEntry     `json:"look,omitempty"`
	Probes []probe.Stored `json:"probes,omitempty"`
}

// beginEntry is the first of a record.
type beginEntry struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	Variant  string `json:"variant"`
	Label    string `json:"label"`
	// Parameters, Versions, Wait and Brief are those of the run.
	Parameters map[string]string `json:"parameters,omitempty"`
	Versions   map[string]string `json:"versions,omitempty"`
	Wait       time.Duration     `json:"wait_ns,omitempty"`
	Brief      bool              `json:"brief,omitempty"`
}

// stepEntry is the beginning or the end of a step.
type stepEntry struct {
	Name        string `json:"name"`
	Ended       bool   `json:"ended,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

// callEntry is something that was done to the lab or asked of it.
type callEntry struct {
	Name  string    `json:"name"`
	Began time.Time `json:"began"`
	answer
}

// waitEntry is the end of a wait: at that moment the condition was met, or given up.
type waitEntry struct {
	What        string `json:"what"`
	Met         bool   `json:"met"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

// lookEntry is a look of the detectors: what they saw, and what they found then.
type lookEntry struct {
	Snapshot snapshot.Snapshot `json:"snapshot"`
	Findings []detect.Finding  `json:"findings"`
}

// recorder writes a variant's record. Its first error ends the record.
type recorder struct {
	zero time.Time // with its monotonic reading: times are told by that

	mu   sync.Mutex
	file *os.File
	out  *zstd.Encoder
	err  error
}

// open makes the record in a folder. Without a folder nothing is recorded. Zero is
// when the run began.
func (r *recorder) open(dir string, zero time.Time, begin beginEntry) {
	r.zero = zero
	if dir == "" {
		return
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		r.file, err = os.Create(filepath.Join(dir, recordName))
	}
	if err == nil {
		// One thread: a look is written in the time of a look.
		r.out, err = zstd.NewWriter(r.file, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(recordWindow), zstd.WithLowerEncoderMem(true))
	}
	if err != nil {
		r.err = fmt.Errorf("creating the record: %w", err)
		return
	}
	r.write(entry{At: r.wall(time.Now()), Begin: &begin})
}

// wall is a time without its monotonic reading, on the clock that the machine had
// when the record began: one that is set in mid-run does not tear the record apart.
func (r *recorder) wall(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return r.zero.Add(t.Sub(r.zero)).Round(0)
}

// write writes an entry, so that it is on disk when write returns.
func (r *recorder) write(e entry) {
	text, err := json.Marshal(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil || r.err != nil {
		return
	}
	if err == nil {
		_, err = r.out.Write(append(text, '\n'))
	}
	if err == nil {
		err = r.out.Flush()
	}
	if err != nil {
		r.err = fmt.Errorf("writing the record: %w", err)
	}
}

// close ends the record, and says what was wrong with it.
func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out != nil {
		r.err = errors.Join(r.err, r.out.Close(), r.file.Close())
		r.out = nil
	}
	err := r.err
	r.err = nil
	return err
}

func (r *recorder) call(ctx context.Context, name string, do func(context.Context) answer) answer {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			a := answer{Error: fmt.Sprint(p), Panicked: true}
			r.write(entry{At: r.wall(time.Now()), Call: &callEntry{Name: name, Began: r.wall(began), answer: a}})
			panic(p)
		}
	}()
	a := do(ctx)
	a.Interrupted = ctx.Err() != nil
	if a.err != nil {
		a.Error = a.err.Error()
	}
	r.write(entry{At: r.wall(time.Now()), Call: &callEntry{Name: name, Began: r.wall(began), answer: a}})
	return a
}

// Now tells what Execution.now does.
func (r *recorder) Now() time.Time {
	if r.zero.IsZero() { // nothing has begun
		return time.Now()
	}
	return r.zero.Add(time.Since(r.zero))
}

// failed says what was wrong with the record so far.
func (r *recorder) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *recorder) Until(ctx context.Context, what string, interval, bound time.Duration, cond await.Condition) error {
	err := await.Until(ctx, what, interval, bound, cond)
	r.waited(ctx, what, err)
	return err
}

// waited records the end of a wait.
func (r *recorder) waited(ctx context.Context, what string, err error) {
	r.write(entry{At: r.wall(time.Now()), Wait: &waitEntry{What: what, Met: err == nil, Interrupted: ctx.Err() != nil}})
}

// recordedSet records its waits.
type recordedSet struct {
	*probe.Set
	recorder *recorder
}

func (s recordedSet) WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error) {
	since, err := s.Set.WaitClean(ctx, names, window, bound)
	s.recorder.probes(s.Timelines())
	s.recorder.waited(ctx, "probes to be clean", err)
	return since, err
}

func (s recordedSet) WaitOutage(ctx context.Context, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error) {
	first, err := s.Set.WaitOutage(ctx, names, since, lasting, bound)
	s.recorder.probes(s.Timelines())
	s.recorder.waited(ctx, "probes to lose packets", err)
	return first, err
}

func (r *recorder) begins(step string) bool {
	r.write(entry{At: r.wall(time.Now()), Step: &stepEntry{Name: step}})
	return true
}

func (r *recorder) ends(step string, interrupted bool) {
	r.write(entry{At: r.wall(time.Now()), Step: &stepEntry{Name: step, Ended: true, Interrupted: interrupted}})
}

// look records what the detectors saw and found.
func (r *recorder) look(s snapshot.Snapshot, l look) {
	s.Time = r.wall(s.Time)
	r.write(entry{At: r.wall(l.ended), Look: &lookEntry{Snapshot: s, Findings: l.findings}})
}

// probes records what is known of the packets.
func (r *recorder) probes(timelines []probe.Timeline) {
	e := entry{At: r.wall(time.Now())}
	for i := range timelines {
		e.Probes = append(e.Probes, timelines[i].Store(r.wall))
	}
	if len(e.Probes) > 0 {
		r.write(e)
	}
}

// readRecord reads so many entries of a record, or those up to its end, or to where
// the run was killed. Restore is what each line goes through first.
func readRecord(path string, most int, restore func([]byte) []byte) ([]entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("reading the record %s: %w", path, err)
	}
	defer in.Close()
	lines := bufio.NewReaderSize(in, 64<<10)
	var entries []entry
	for len(entries) < most {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			break // the line that was being written is lost
		}
		if err != nil {
			return nil, fmt.Errorf("reading the record %s: %w", path, err)
		}
		var e entry
		if err := json.Unmarshal(restore(line), &e); err != nil {
			return nil, fmt.Errorf("reading the record %s, line %d: %w", path, len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 || entries[0].Begin == nil || entries[0].Begin.Schema != recordSchema {
		return nil, fmt.Errorf("reading the record %s: it does not begin with the schema %s", path, recordSchema)
	}
	return entries, nil
}

// onTape puts all that a script does to the lab and asks of it on the variant's
// tape. What it says of probes and findings is not touched: that is judged anew.
func (v *variantRun) onTape(s framework.Script) framework.Script {
	do := func(name string, f func(context.Context, *framework.Run) error) func(context.Context, *framework.Run) error {
		if f == nil {
			return nil
		}
		return func(ctx context.Context, r *framework.Run) error {
			return v.tape.call(ctx, name, func(ctx context.Context) answer { return answer{err: f(ctx, r)} }).err
		}
	}
	checks := func(where string, all []framework.Check) []framework.Check {
		var taped []framework.Check
		for _, c := range all {
			if asked := c; !c.AsksDetectors { // what they say is judged anew
				c.Holds = func(ctx context.Context, r *framework.Run) (bool, string, error) {
					a := v.tape.call(ctx, where+c.Name, func(ctx context.Context) answer {
						holds, saw, err := v.look(ctx, asked, r)
						return answer{Holds: holds, Saw: saw, err: err}
					})
					return a.Holds, a.Saw, a.err
				}
			}
			taped = append(taped, c)
		}
		return taped
	}
	s.Install = do("install", s.Install)
	s.Baseline, s.Aftermath = checks("before: ", s.Baseline), checks("after: ", s.Aftermath)
	var forms []framework.LesserForm
	for _, form := range s.Forms {
		form.Fault = v.faultOnTape(form.Step(), form.Fault)
		form.Aftermath = checks(form.Step()+": ", form.Aftermath)
		forms = append(forms, form)
	}
	s.Forms = forms
	s.Fault = v.faultOnTape("fault", s.Fault)
	if refuses := s.Refuses; refuses != nil {
		s.Refuses = func(ctx context.Context, r *framework.Run) (string, error) {
			a := v.tape.call(ctx, "refuses", func(ctx context.Context) answer {
				why, err := refuses(ctx, r)
				return answer{Saw: why, err: err}
			})
			return a.Saw, a.err
		}
	}
	if s.Race != nil {
		race := *s.Race
		ran := race.Ran
		race.Ran = func() (int, bool) {
			a := v.tape.call(context.Background(), "race", func(context.Context) answer {
				rounds, struck := ran()
				return answer{Rounds: rounds, Holds: struck}
			})
			return a.Rounds, a.Holds
		}
		s.Race = &race
	}
	var remedies []framework.Remedy
	for _, r := range s.Remedies {
		r.Apply, r.Undo = do(r.Step()+": apply", r.Apply), do(r.Step()+": undo", r.Undo)
		remedies = append(remedies, r)
	}
	s.Remedies = remedies
	return s
}

// faultOnTape is the fault of a script, on the tape.
func (v *variantRun) faultOnTape(name string, make func(*framework.Run) fault.Fault) func(*framework.Run) fault.Fault {
	return func(r *framework.Run) fault.Fault {
		var f fault.Fault
		f.Name = v.tape.call(context.Background(), name, func(context.Context) answer {
			f = make(r)
			return answer{Saw: f.Name}
		}).Saw
		inject, held, undo := f.Inject, f.Held, f.Undo
		f.Inject = func(ctx context.Context) error {
			return v.tape.call(ctx, name+": inject", func(ctx context.Context) answer { return answer{err: inject(ctx)} }).err
		}
		f.Held = func(ctx context.Context) (bool, string, error) {
			a := v.tape.call(ctx, name+": held", func(ctx context.Context) answer {
				holds, saw, err := held(ctx)
				return answer{Holds: holds, Saw: saw, err: err}
			})
			return a.Holds, a.Saw, a.err
		}
		f.Undo = func(ctx context.Context) error {
			return v.tape.call(ctx, name+": undo", func(ctx context.Context) answer { return answer{err: undo(ctx)} }).err
		}
		return f
	}
}
