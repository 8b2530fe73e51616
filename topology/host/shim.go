package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/relapse-dev/relapse/topology/await"
)

// reloadBound is how long dockerd may take to read its configuration again;
// it takes milliseconds.
const reloadBound = 15 * time.Second

// installShim builds the OCI runtime runc-caps and makes it Docker's
// default.
func (h host) installShim(ctx context.Context, source string, missing []string, announce func(string)) error {
	announce(fmt.Sprintf("building the OCI runtime %s into %s, because this machine does not grant %s",
		runtimeName, h.shim, strings.Join(missing, " ")))
	if err := h.buildShim(ctx, source); err != nil {
		return fmt.Errorf("building the OCI runtime %s: %w", runtimeName, err)
	}
	before, err := h.readDaemonJSON()
	if err != nil {
		return err
	}
	config, err := parseDaemonConfig([]byte(before.text()))
	if err != nil {
		return fmt.Errorf("reading Docker's configuration %s: %w", h.daemonJSON, err)
	}
	config, err = config.register(h.shim)
	if err != nil {
		return err
	}
	after, err := config.text()
	if err != nil {
		return err
	}
	// Recorded first, so that even a killed set-up can be taken back. A
	// registration that is there already was recorded when it was made.
	if string(after) != before.text() {
		change := &change{Before: before.content, After: string(after)}
		if err := h.remember(func(r *record) { r.DaemonJSON = change }); err != nil {
			return err
		}
	}
	announce(fmt.Sprintf("making %s Docker's default OCI runtime in %s, and dockerd read it again", runtimeName, h.daemonJSON))
	if err := writeFile(h.daemonJSON, after, before.mode); err != nil {
		return fmt.Errorf("writing Docker's configuration: %w", err)
	}
	if err := h.reload(ctx, runtimeName); err != nil {
		// A file that dockerd refuses would keep it from starting again.
		return errors.Join(err, before.restore())
	}
	return nil
}

// removeShim takes back what installShim did to Docker's configuration, and
// removes the shim. What others have changed in the file since is kept.
func (h host) removeShim(ctx context.Context, made change, announce func(string)) error {
	_, running := h.dockerd()
	var users []string
	if running {
		var err error
		if users, err = shimUsers(ctx); err != nil {
			return err
		}
	}
	if len(users) > 0 {
		return fmt.Errorf("containers still run by the OCI runtime %s: %s; remove them first (relapse down, docker rm)",
			runtimeName, strings.Join(users, " "))
	}
	announce(fmt.Sprintf("taking the OCI runtime %s out of %s, and removing %s", runtimeName, h.daemonJSON, h.shim))
	now, err := h.readDaemonJSON()
	if err != nil {
		return err
	}
	original := daemonFile{path: h.daemonJSON, content: made.Before, mode: now.mode}
	final := original
	before, err := parseDaemonConfig([]byte(original.text()))
	if err != nil {
		return fmt.Errorf("reading what %s was: %w", h.daemonJSON, err)
	}
	config, err := parseDaemonConfig([]byte(now.text()))
	if err != nil {
		return fmt.Errorf("reading Docker's configuration %s: %w", h.daemonJSON, err)
	}
	if config, err = config.withdraw(before); err != nil {
		return err
	}
	if now.text() != made.After && now.content != nil {
		text, err := config.text()
		if err != nil {
			return err
		}
		kept := string(text)
		final.content = &kept
	}
	if running {
		told, err := config.explicit()
		if err != nil {
			return err
		}
		text, err := told.text()
		if err != nil {
			return err
		}
		if err := writeFile(h.daemonJSON, text, now.mode); err != nil {
			return fmt.Errorf("writing Docker's configuration: %w", err)
		}
		if err := h.reload(ctx, told.defaultRuntime()); err != nil {
			return errors.Join(err, now.restore())
		}
	}
	if err := final.restore(); err != nil {
		return fmt.Errorf("restoring Docker's configuration: %w", err)
	}
	if err := os.Remove(h.shim); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the shim: %w", err)
	}
	return nil
}

// buildShim builds the shim beside its place and moves it there, so that
// Docker never runs half a file.
func (h host) buildShim(ctx context.Context, source string) error {
	// sudo's PATH has no room for Go's usual place.
	program := find("go")
	if program == "" {
		program = "/usr/local/go/bin/go"
	}
	if err := os.MkdirAll(filepath.Dir(h.shim), 0o755); err != nil {
		return err
	}
	built := h.shim + ".new"
	if err := run(ctx, source, []string{"CGO_ENABLED=0"}, program, "build", "-trimpath", "-o", built, "./cmd/runc-caps"); err != nil {
		return err
	}
	return os.Rename(built, h.shim)
}

// reload makes dockerd read its configuration again and waits until it says
// that runtime is its default.
func (h host) reload(ctx context.Context, runtime string) error {
	pid, ok := h.dockerd()
	if !ok {
		return fmt.Errorf("reloading Docker's configuration: no dockerd with its process ID in %s; restart Docker yourself", h.pidFile)
	}
	number, err := strconv.Atoi(pid)
	if err != nil {
		return fmt.Errorf("reading %s: %w", h.pidFile, err)
	}
	if err := syscall.Kill(number, syscall.SIGHUP); err != nil {
		return fmt.Errorf("reloading Docker's configuration: signalling dockerd: %w", err)
	}
	return await.Until(ctx, "Docker's default OCI runtime to be "+runtime, 50*time.Millisecond, reloadBound,
		func(ctx context.Context) (bool, string, error) {
			info, _, err := engineInfo(ctx)
			return err == nil && info.DefaultRuntime == runtime, info.DefaultRuntime, err
		})
}

// shimUsers names the containers that were made with the shim. They could
// neither be started again nor entered without it.
func shimUsers(ctx context.Context) ([]string, error) {
	docker, err := connect()
	if err != nil {
		return nil, err
	}
	defer docker.Close()
	all, err := docker.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("looking for containers that use the OCI runtime %s: %w", runtimeName, err)
	}
	var users []string
	for _, c := range all {
		details, err := docker.ContainerInspect(ctx, c.ID)
		if err != nil {
			return nil, fmt.Errorf("looking at container %s: %w", c.ID, err)
		}
		if details.HostConfig.Runtime == runtimeName {
			users = append(users, strings.TrimPrefix(details.Name, "/"))
		}
	}
	return users, nil
}

// daemonFile is Docker's configuration file at some moment.
type daemonFile struct {
	path    string
	content *string // nil: there is none
	mode    fs.FileMode
}

func (h host) readDaemonJSON() (daemonFile, error) {
	file := daemonFile{path: h.daemonJSON, mode: 0o644}
	text, err := os.ReadFile(h.daemonJSON)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, fmt.Errorf("reading Docker's configuration: %w", err)
	}
	info, err := os.Stat(h.daemonJSON)
	if err != nil {
		return file, err
	}
	content := string(text)
	file.content, file.mode = &content, info.Mode().Perm()
	return file, nil
}

func (f daemonFile) text() string {
	if f.content == nil {
		return ""
	}
	return *f.content
}

// restore makes the file what it was.
func (f daemonFile) restore() error {
	if f.content != nil {
		return writeFile(f.path, []byte(*f.content), f.mode)
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
