package end

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/cilium/pkg/logging"
)

var update = flag.Bool("update", false, "write the golden files")

// exited is the panic in place of the end of the program.
type exited int

func TestWith(t *testing.T) {
	exit, out := logging.DefaultLogger.ExitFunc, logging.DefaultLogger.Out
	t.Cleanup(func() { logging.DefaultLogger.ExitFunc, logging.DefaultLogger.Out = exit, out })
	logging.DefaultLogger.ExitFunc = func(code int) { panic(exited(code)) }

	refused := Refused(fmt.Errorf("invalid daemon configuration: %s", errors.New("MTU '-1' cannot be negative")))
	for _, test := range []struct {
		name string
		err  error
	}{
		{"slice", fmt.Errorf("the slice needs %s: %q", "tunnel", "disabled")},
		// An error can quote what it likes.
		{"slice-quotes", errors.New("reading level=fatal msg=\"Error while creating daemon\" subsys=daemon")},
		{"refused", refused},
		{"refused-wrapped", fmt.Errorf("starting: %w", refused)},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got bytes.Buffer
			logging.DefaultLogger.Out = &got
			func() {
				defer func() {
					if code := recover(); code != exited(1) {
						t.Errorf("ended with %v, want status 1", code)
					}
				}()
				With("Unable to start", test.err)
			}()
			golden := filepath.Join("testdata", test.name+".log")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got  %s\nwant %s", got.Bytes(), want)
			}
		})
	}
}
