package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"al.essio.dev/pkg/shellescape"
)

// Setup makes the machine able to run a lab, as far as that can be done, and
// returns what an inspection finds then. It calls announce with each step
// before it takes it. Where nothing is to be done it only inspects.
//
// source is the root of relapse's own source, from which the shim is built.
//
// A machine that cannot run a lab is an *UnfitError, with all the reasons;
// nothing has been changed then, unless a cure did not take. Any other error
// is a cure that failed.
func Setup(ctx context.Context, needs Needs, source string, announce func(step string)) (Report, error) {
	return this.setup(ctx, needs, source, announce)
}

func (h host) setup(ctx context.Context, needs Needs, source string, announce func(string)) (Report, error) {
	o := h.observe(ctx, needs)
	report := o.judge()
	if err := report.unfit(Fatal); err != nil {
		return report, err
	}
	if report.Err() == nil {
		return report, nil
	}
	if missing := o.missingPackages(); len(missing) > 0 {
		announce("installing Debian packages: " + aptInstall + " " + strings.Join(missing, " "))
		if err := installPackages(ctx, missing, announce); err != nil {
			return report, fmt.Errorf("installing Debian packages: %w", err)
		}
		if err := h.remember(func(r *record) { r.Packages = append(r.Packages, missing...) }); err != nil {
			return report, err
		}
	}
	if _, raise := judgeInotify(o.inotify); len(raise) > 0 {
		if err := h.raiseLimits(raise, announce); err != nil {
			return report, fmt.Errorf("raising the kernel's limits: %w", err)
		}
	}
	if o.engine.err != nil {
		if err := h.startDocker(ctx, announce); err != nil {
			return report, fmt.Errorf("starting Docker: %w", err)
		}
	}
	// Only Docker's own attempt tells whether it needs the shim: from
	// version 23 on it does not ask for capabilities that it lacks itself.
	o = h.observe(ctx, needs)
	if _, missing := judgeCapabilities(o.status, o.lastCap); judgePrivileged(o.trial, missing).State == Curable {
		if err := h.installShim(ctx, source, missing, announce); err != nil {
			return report, err
		}
		o = h.observe(ctx, needs)
	}
	report = o.judge()
	return report, report.Err()
}

// missingPackages are the Debian packages that cure what was observed.
func (o observed) missingPackages() []string {
	_, missing := judgePackages(o.needs.Packages, o.dpkg, o.apt)
	switch {
	case o.engine.err != nil && !o.engine.installed:
		missing = append(missing, dockerPackage)
	case !o.engine.command:
		missing = append(missing, dockerCommandPackage)
	}
	return missing
}

// Undo takes back what Setup changed in Docker's configuration and in the
// kernel's limits, and removes the shim. It calls announce with each step before it takes it. Packages
// and a running Docker stay: others may use them by now; announce is told
// how to remove them. Where Setup changed nothing it does nothing.
func Undo(ctx context.Context, announce func(step string)) error {
	return this.undo(ctx, announce)
}

func (h host) undo(ctx context.Context, announce func(string)) error {
	r, err := h.recorded()
	if err != nil {
		return err
	}
	if r.DaemonJSON != nil {
		if err := h.removeShim(ctx, *r.DaemonJSON, announce); err != nil {
			return err
		}
	}
	if err := h.lowerLimits(r.Sysctls, announce); err != nil {
		return err
	}
	if len(r.Packages) > 0 {
		announce("leaving the Debian packages that were installed; to remove them: apt-get remove " +
			strings.Join(r.Packages, " "))
	}
	if err := os.Remove(h.record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of the set-up: %w", err)
	}
	return nil
}

// record is what Setup changed on a machine.
type record struct {
	Packages   []string `json:"packages,omitempty"`
	DaemonJSON *change  `json:"daemonJSON,omitempty"`
	// Sysctls are kernel settings by their names.
	Sysctls map[string]change `json:"sysctls,omitempty"`
}

// change is what happened to a file, or to a kernel setting.
type change struct {
	Before *string `json:"before"` // its text, or value; null: there was none
	After  string  `json:"after"`
}

func (h host) recorded() (record, error) {
	var r record
	text, err := os.ReadFile(h.record)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("reading what the set-up changed: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("reading what the set-up changed from %s: %w", h.record, err)
	}
	return r, nil
}

// remember adds to the record.
func (h host) remember(add func(*record)) error {
	r, err := h.recorded()
	if err != nil {
		return err
	}
	add(&r)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(h.record, text, 0o600); err != nil {
		return fmt.Errorf("recording what the set-up changes: %w", err)
	}
	return nil
}

// writeFile replaces a file as a whole or not at all, and makes its
// directory where there is none.
func writeFile(path string, text []byte, mode fs.FileMode) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".relapse"
	if err := os.WriteFile(temporary, text, mode); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// run runs a command to its end. A failure's error holds the command line
// and what the command said last.
func run(ctx context.Context, dir string, env []string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(env, sbinPath())...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", shellescape.QuoteCommand(command), err, lastLines(string(out), 15))
	}
	return nil
}

// sbinPath is PATH with the directories of dockerd, iptables and dpkg's
// helpers, which su and cron leave out.
func sbinPath() string {
	return "PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
