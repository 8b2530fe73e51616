package parallel

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
)

func TestLineWriter(t *testing.T) {
	var out bytes.Buffer
	var lines sync.Mutex
	a, b := &lineWriter{to: &out, lines: &lines, prefix: "a | "}, &lineWriter{to: &out, lines: &lines, prefix: "b | "}
	for _, w := range []struct {
		to   *lineWriter
		text string
	}{{a, "one\ntw"}, {b, "other\n\n"}, {a, "o\nthree"}} {
		if n, err := w.to.Write([]byte(w.text)); n != len(w.text) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := errors.Join(a.flush(), b.flush()); err != nil {
		t.Fatal(err)
	}
	if want := "a | one\nb | other\nb | \na | two\na | three\n"; out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}

// TestLineWriterToNowhere writes where nothing can be written: the job continues, and
// flush returns the error.
func TestLineWriterToNowhere(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var lines sync.Mutex
	p := &lineWriter{to: full, lines: &lines}
	for range 2 {
		if n, err := p.Write([]byte("one\n")); n != 4 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if err := p.flush(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
}
