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
	"slices"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/await"
)

// Setup prepares the machine for labs and returns the result of an inspection after that. It calls
// announce with each step before it takes it. If no step is necessary it only inspects.
//
// source is the root of relapse's source, from which the shim is built.
//
// The error is an *UnfitError with all reasons if the machine cannot run a lab. Then nothing was
// changed, unless a cure had no effect. Any other error is a cure that failed.
func Setup(ctx context.Context, needs Needs, source string, announce func(step string)) (Report, error) {
	return this.setup(ctx, needs, source, announce)
}

func (h host) setup(ctx context.Context, needs Needs, source string, announce func(string)) (Report, error) {
	o := h.observe(ctx, needs)
	report := o.judge()
	if err := report.unfit(Fatal); err != nil {
		return report, err
	}
	_, enlarge := judgePages(o.pages, o.contained)
	if report.Err() == nil && !enlarge {
		return report, nil
	}
	unlock, err := h.exclusive(ctx, announce)
	if err != nil {
		return report, err
	}
	defer unlock()
	o = h.observe(ctx, needs) // the other set-up may have changed it
	o, err = h.installMissing(ctx, o, func() observed { return h.observe(ctx, needs) }, announce)
	if err != nil {
		return report, err
	}
	if _, raise := judgeInotify(o.inotify); len(raise) > 0 {
		if err := h.raiseLimits(raise, announce); err != nil {
			return report, fmt.Errorf("raising the kernel's limits: %w", err)
		}
	}
	if _, enlarge := judgePages(o.pages, o.contained); enlarge {
		h.enlargePages(announce)
	}
	if o.engine.err != nil {
		if err := h.startDocker(ctx, announce); err != nil {
			return report, fmt.Errorf("starting Docker: %w", err)
		}
	}
	// Only a trial shows whether Docker needs the shim: from version 23 on it does
	// not request capabilities that it lacks itself.
	o = h.observe(ctx, needs)
	if judgePrivileged(o.trial, o.missing).State == Curable {
		if err := h.installShim(ctx, source, o.missing, announce); err != nil {
			return report, err
		}
		o = h.observe(ctx, needs)
	}
	report = o.judge()
	return report, report.Err()
}

func (o observed) missingPackages() []string {
	_, missing := judgePackages(o.needs.Packages, o.dpkg, o.apt)
	return append(missing, o.engine.packages()...)
}

// installMissing installs the missing packages and observes the machine again. A second round is for
// the docker command of a machine without apt's lists: only after the first round it shows whether
// that is a package of its own.
func (h host) installMissing(ctx context.Context, o observed, observe func() observed, announce func(string)) (observed, error) {
	for range 2 {
		missing := o.missingPackages()
		if len(missing) == 0 {
			break
		}
		if slices.Contains(missing, dockerPackage) {
			if err := h.rememberDocker(); err != nil {
				return o, err
			}
		}
		announce("installing Debian packages: " + aptInstall + " " + strings.Join(missing, " "))
		if err := installPackages(ctx, missing, announce); err != nil {
			return o, fmt.Errorf("installing Debian packages: %w", err)
		}
		if err := h.remember(func(r *record) { r.Packages = append(r.Packages, missing...) }); err != nil {
			return o, err
		}
		o = observe()
	}
	return o, nil
}

// Undo reverts Setup's changes to Docker's configuration and to the kernel's settings, and removes
// the shim. It calls announce with each step before it takes it. Packages and a running Docker
// stay, because others may use them; announce gets the commands that remove them and what dockerd
// leaves when it ends. Without changes Undo does nothing.
func Undo(ctx context.Context, announce func(step string)) error { return this.undo(ctx, announce) }

func (h host) undo(ctx context.Context, announce func(string)) error {
	if !exists(h.record) {
		return nil
	}
	unlock, err := h.exclusive(ctx, announce)
	if err != nil {
		return err
	}
	defer unlock()
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
			strings.Join(r.Packages, " ") + ", and apt-get autoremove for what these needed")
	}
	if left := r.Docker.left(); left != "" {
		announce("leaving Docker, which the set-up has started; " + left)
	}
	if err := os.Remove(h.record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of the set-up: %w", err)
	}
	return nil
}

// lockBound bounds the wait for another set-up, which installs packages.
const lockBound = 20 * time.Minute

// exclusive waits until no other process runs Setup or Undo on this machine.
func (h host) exclusive(ctx context.Context, announce func(string)) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(h.lock), 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder of the set-up's lock: %w", err)
	}
	file, err := os.OpenFile(h.lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the set-up's lock: %w", err)
	}
	announced := false
	err = await.Until(ctx, "another set-up of this machine to end", 100*time.Millisecond, lockBound,
		func(context.Context) (bool, string, error) {
			err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if err != nil && !announced {
				announced = true
				announce("waiting for another set-up of this machine to end")
			}
			return err == nil, "", err
		})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { file.Close() }, nil
}

type record struct {
	// Docker is set if Setup started dockerd.
	Docker     *dockerBefore `json:"docker,omitempty"`
	Packages   []string      `json:"packages,omitempty"`
	DaemonJSON *change       `json:"daemonJSON,omitempty"`
	// Sysctls are kernel settings by their names, or the paths of their files.
	Sysctls map[string]change `json:"sysctls,omitempty"`
}

type change struct {
	Before *string `json:"before"` // text or value; null if there was none
	After  string  `json:"after"`
}

func (h host) recorded() (record, error) {
	r := record{Sysctls: map[string]change{}}
	text, err := os.ReadFile(h.record)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("reading the record of the set-up: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("reading the record of the set-up, %s: %w", h.record, err)
	}
	return r, nil
}

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
		return fmt.Errorf("writing the record of the set-up: %w", err)
	}
	return nil
}

// writeFile replaces a file atomically. It follows symbolic links, and makes the
// directory if necessary.
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

// run runs a command. Its error contains the command line and the last lines of the output.
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

// sbinPath is PATH with the directories of dockerd, iptables and dpkg's helpers,
// which are missing under su and cron.
func sbinPath() string { return "PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin" }

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
