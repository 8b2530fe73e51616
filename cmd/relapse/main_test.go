package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

// asProgram is an environment variable with which the test binary is relapse. So tests get the exit status and the two
// streams of a process without a second build.
const asProgram = "RELAPSE_TEST_AS_PROGRAM"

// rolesExchanged makes that program exchange affected and fixed versions, as a wrong declaration would.
const rolesExchanged = "RELAPSE_TEST_ROLES_EXCHANGED"

// exchangeRoles exchanges affected and fixed variants. The expected findings move to the variants that become affected.
func exchangeRoles(variants []framework.Variant) {
	first := slices.IndexFunc(variants, func(v framework.Variant) bool { return v.Role == framework.Affected })
	named := variants[first].Script().Expected
	for i := range variants {
		v := &variants[i]
		switch v.Role {
		case framework.Affected:
			v.Role = framework.Fixed
		case framework.Fixed:
			v.Role = framework.Affected
			script := v.Script
			v.Script = func() framework.Script {
				made := script()
				made.Expected = named
				return made
			}
		}
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		for i, s := range scenarios.All {
			if os.Getenv(rolesExchanged) != "" {
				exchangeRoles(s.Variants)
				scenarios.All[i].Incident.Facts = nil // their steps belong to other variants now
			}
			if os.Getenv(withoutRemedies) != "" {
				changeScripts(s.Variants, leaveRemediesOut)
				scenarios.All[i].Incident.Facts = nil // some refer to steps of remedies
			}
			if os.Getenv(guestMemory) != "" {
				changeScripts(s.Variants, takeGuestMemory)
			}
		}
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// program is a command of relapse. Its default folder is the folder of this package, so it finds the source.
func program(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

type ended struct {
	status         int
	stdout, stderr string
}

// end runs a program to its end, within a minute.
func end(t *testing.T, cmd *exec.Cmd) ended {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second // its children may hold the streams open
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running %v: %v", cmd.Args[1:], err)
	}
	return ended{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// prints fails the test unless the program has ended with a status, and printed all of these words.
func (e ended) prints(t *testing.T, status int, words ...string) {
	t.Helper()
	must.Equal(t, e, status, e.status)
	must.Contain(t, e.stdout, words...)
}

// complains is like prints, for standard error.
func (e ended) complains(t *testing.T, status int, words ...string) {
	t.Helper()
	must.Equal(t, e, status, e.status)
	must.Contain(t, e.stderr, words...)
}

// ran runs another program in a folder to its end. A failure ends the test.
func ran(t *testing.T, dir string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", command, err, out)
	}
}

func committed(t *testing.T, dir string) {
	t.Helper()
	ran(t, dir, "git", "init", "-q", "-b", "main")
	ran(t, dir, "git", "add", "-A")
	ran(t, dir, "git", "-c", "user.name=t", "-c", "user.email=t@example.net", "commit", "-q", "-m", "first")
}

func relapse(t *testing.T, args ...string) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return end(t, program(ctx, args...))
}

// Variables that change the scenarios of that program, each set to 1.
const (
	// withoutRemedies leaves out precursors and remedies, which take the time of several runs.
	withoutRemedies = "RELAPSE_TEST_WITHOUT_REMEDIES"
	// guestMemory leaves a guest of ipvs-deadlock without memory, right before the fault.
	guestMemory = "RELAPSE_TEST_GUEST_MEMORY"
)

func changeScripts(variants []framework.Variant, change func(*framework.Script)) {
	for i, v := range variants {
		variants[i].Script = func() framework.Script {
			made := v.Script()
			change(&made)
			return made
		}
	}
}

func leaveRemediesOut(s *framework.Script) { s.Precursors, s.Remedies = nil, nil }

// takeGuestMemory makes the fault fill a guest's memory by files in a tmpfs, which the kernel cannot reclaim.
func takeGuestMemory(s *framework.Script) {
	inject := s.Fault.Inject
	s.Fault.Inject = func(ctx context.Context, r *framework.Run) error {
		_, err := labaccess.Lab(r).Node("edge3").Exec(ctx, "sh", "-c",
			"mkdir -p /filler && mount -t tmpfs -o size=100% tmpfs /filler && (cat /dev/zero >/filler/x &) >/dev/null 2>&1")
		if err != nil {
			return err
		}
		return inject(ctx, r)
	}
}

func eventually(t *testing.T, what string, bound time.Duration, met func() (ok bool, saw string)) {
	t.Helper()
	must.NoError(t, await.Until(t.Context(), what, 10*time.Millisecond, bound, func(context.Context) (bool, string, error) {
		ok, saw := met()
		return ok, saw, nil
	}))
}
