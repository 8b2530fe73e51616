package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
	"github.com/relapse-dev/relapse/topology/status"
)

func withoutDocker(t *testing.T) error {
	t.Helper()
	dead, err := client.New(client.WithHost("unix://" + filepath.Join(t.TempDir(), "docker.sock")))
	must.NoError(t, err)
	_, err = dead.Ping(t.Context(), client.PingOptions{})
	return err
}

func TestExitStatus(t *testing.T) {
	noDocker := withoutDocker(t)
	bad := topology.Topology{Name: "UPPER"}
	invalid := bad.Validate()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	heldError := &kindlab.HeldError{Lab: "node-drain"}
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"done", nil, exitExpected},
		{"bad usage", usagef("no scenario"), exitUsage},
		{"several slips", errors.Join(usagef("one"), usagef("two")), exitUsage},
		{"a topology that cannot be built", invalid, exitUsage},
		{"a version without a recipe", &images.UnknownVersionError{}, exitUsage},
		{"an image that does not build", &images.BuildError{Err: errors.New("exit status 1")}, exitMachine},
		{"a module proxy that does not answer", fmt.Errorf("deriving: %w", &images.UnreachableError{}), exitMachine},
		{"a machine that is not fit", &host.UnfitError{}, exitMachine},
		{"a cure that did not take", errors.Join(status.Machine("apt-get")), exitMachine},
		{"a lab that is held", heldError, exitMachine},
		{"a lab that is held, found by a run", judgedAs(framework.Inconclusive, heldError), exitMachine},
		{"no Docker", noDocker, exitMachine},
		{"an image that needs root", fmt.Errorf("building image: %w", fs.ErrPermission), exitMachine},
		{"a full disk", fmt.Errorf("writing: %w", syscall.ENOSPC), exitMachine},
		{"a failed verdict", judgedAs(framework.Fail, nil), exitUnexpected},
		{"a failed verdict, and a lab that did not go down", judgedAs(framework.Fail, errors.New("busy")), exitUnexpected},
		{"an inconclusive verdict", judgedAs(framework.Inconclusive, nil), exitInconclusive},
		{"a lab that did not come up", judgedAs(framework.Inconclusive, errors.New("no node")), exitInconclusive},
		{"a run that was interrupted", judgedAs(framework.Inconclusive, engine.ErrInterrupted), exitInterrupted},
		{"a guest that does not come up", judgedAs(framework.Inconclusive, fmt.Errorf("up: %w", status.Machine("no KVM"))), exitMachine},
		{"an error of ssh", fmt.Errorf("reading a router: %w", ofSSH{errors.New("status 1")}), exitFailed},
		{"anything else", errors.New("lab is not down"), exitFailed},
		{"a failed verdict beside a scenario that this machine cannot run", judgedAs(framework.Fail, &images.BuildError{Err: errors.New("x")}), exitUnexpected},
		{"an image of a version that is not published", &images.BuildError{Err: &images.NotPublishedError{}}, exitUsage},
		{"a form that nothing builds, beside an image that does not build", errors.Join(&images.BuildError{Err: errors.New("x")}, &suite.FormError{}), exitUsage},
		{"a verdict for want of Docker", judgedAs(framework.Inconclusive, noDocker), exitMachine},
		{"a file that is no run's", &rundir.UnsafeError{}, exitUsage},
		{"what follows an error", fmt.Errorf("%w\ncontinue with: relapse", errors.New("busy")), exitFailed},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "", test.want, exitStatus(t.Context(), test.err))
			must.Equal(t, "after a signal", exitInterrupted, exitStatus(cancelled, test.err))
		})
	}
}

// ofSSH is an error of another program, with an ExitStatus method of its own.
type ofSSH struct{ error }

func (ofSSH) ExitStatus() int { return 1 }

func TestComplaint(t *testing.T) {
	noDocker := withoutDocker(t)
	const stopped = "Docker stopped answering: start it (see relapse doctor), and remove what is left of the lab (relapse down)"
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		want string
	}{
		{"all is well", t.Context(), nil, ""},
		{"verdicts speak for themselves", t.Context(), judgedAs(framework.Fail, nil), ""},
		{"why there is no verdict", t.Context(), judgedAs(framework.Inconclusive, errors.New("no node")), "no node"},
		{"no Docker", t.Context(), noDocker, noDocker.Error()},
		{"no Docker, in one of several errors", t.Context(), judgedAs(framework.Inconclusive, errors.Join(fmt.Errorf("step: %w", errors.Join(noDocker, errors.New("busy"))))), stopped},
		{"interrupted in the middle of something", cancelled, errors.New("dialling: context canceled"), "interrupted"},
		{"interrupted, with something left", cancelled,
			judgedAs(framework.Inconclusive, errors.Join(engine.ErrInterrupted, errors.New("removing network: busy"))),
			"interrupted\nremoving network: busy"},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, complaint(test.ctx, test.err)) })
	}
}

func TestOutcome(t *testing.T) {
	runs := func(verdicts ...framework.RunVerdict) []report.Report {
		return each.Of(verdicts, func(v framework.RunVerdict) report.Report { return report.Report{Verdict: string(v)} })
	}
	for _, test := range []struct {
		name   string
		runs   []report.Report
		broken error
		want   int
	}{
		{"all pass", runs(framework.Pass, framework.Pass), nil, exitExpected},
		{"one fails", runs(framework.Pass, framework.Fail), nil, exitUnexpected},
		{"one proves nothing", runs(framework.Inconclusive, framework.Pass), nil, exitInconclusive},
		{"a failure outweighs what proves nothing", runs(framework.Inconclusive, framework.Fail), nil, exitUnexpected},
		{"a verdict that is none", runs(framework.Pass, ""), nil, exitInconclusive},
		{"broken after a pass", runs(framework.Pass), errors.New("no lab"), exitInconclusive},
		{"broken after a failure", runs(framework.Fail), errors.New("no lab"), exitUnexpected},
		{"nothing ran, for want of an image", nil, &images.BuildError{Err: errors.New("x")}, exitMachine},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "", test.want, exitStatus(t.Context(), outcome(test.runs, test.broken)))
		})
	}
}
