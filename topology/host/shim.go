package host

import (
	"cmp"
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

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology/await"
)

// reloadBound bounds how long dockerd takes to reload its configuration: it needs milliseconds.
const reloadBound = 15 * time.Second

func (h host) installShim(ctx context.Context, source string, missing []string, announce func(string)) error {
	before, err := h.readDaemonJSON()
	if err != nil {
		return err
	}
	config, err := parseDaemonConfig([]byte(before.text()))
	if err != nil {
		return fmt.Errorf("reading Docker's configuration %s: %w", h.daemonJSON, err)
	}
	// dockerd may not have read the file since its owner has changed it.
	if name := config.defaultRuntime(); foreignRuntime(name) {
		return &UnfitError{Checks: []Check{{
			Name: "Docker's configuration", State: Fatal, Found: fmt.Sprintf("%q is the default OCI runtime in %s", name, h.daemonJSON),
			Want: "Docker's default OCI runtime must be runc; relapse does not replace another one", Cure: fmt.Sprintf(runtimeCure, h.daemonJSON),
		}}}
	}
	if err := config.register(h.shim); err != nil {
		return err
	}
	announce(fmt.Sprintf("building the OCI runtime %s into %s, because this machine does not grant %s",
		runtimeName, h.shim, strings.Join(missing, " ")))
	if err := h.buildShim(ctx, source); err != nil {
		return fmt.Errorf("building the OCI runtime %s: %w", runtimeName, err)
	}
	registered, err := config.text()
	if err != nil {
		return err
	}
	// Recorded first, so that a killed set-up can be undone. An existing
	// registration has its record already.
	if string(registered) != before.text() {
		change := &change{Before: before.content, After: string(registered)}
		if err := h.remember(func(r *record) { r.DaemonJSON = change }); err != nil {
			return err
		}
	}
	announce(fmt.Sprintf("making %s Docker's default OCI runtime in %s, and reloading dockerd's configuration", runtimeName, h.daemonJSON))
	if err := writeFile(h.daemonJSON, registered, before.mode); err != nil {
		return fmt.Errorf("writing Docker's configuration: %w", err)
	}
	if err := h.reload(ctx, runtimeName); err != nil {
		// dockerd would not start again with a file that it refuses.
		return errors.Join(err, before.restore())
	}
	return nil
}

// removeShim reverts installShim's change of Docker's configuration, and removes
// the shim. Later changes of the file by others are kept.
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
		return fmt.Errorf("containers that use the OCI runtime %s: %s; remove them first (relapse down, docker rm)",
			runtimeName, strings.Join(users, " "))
	}
	announce(fmt.Sprintf("removing the OCI runtime %s from %s, and the file %s", runtimeName, h.daemonJSON, h.shim))
	now, err := h.readDaemonJSON()
	if err != nil {
		return err
	}
	original := daemonFile{path: h.daemonJSON, content: made.Before, mode: now.mode}
	final := original
	before, err := parseDaemonConfig([]byte(original.text()))
	if err != nil {
		return fmt.Errorf("reading %s as it was before the set-up: %w", h.daemonJSON, err)
	}
	config, err := parseDaemonConfig([]byte(now.text()))
	if err != nil {
		return fmt.Errorf("reading Docker's configuration %s: %w", h.daemonJSON, err)
	}
	config.withdraw(before)
	if now.text() != made.After && now.content != nil {
		text, err := config.text()
		if err != nil {
			return err
		}
		withdrawn := string(text)
		final.content = &withdrawn
	}
	if running {
		config.explicit()
		text, err := config.text()
		if err != nil {
			return err
		}
		if err := writeFile(h.daemonJSON, text, now.mode); err != nil {
			return fmt.Errorf("writing Docker's configuration: %w", err)
		}
		if err := h.reload(ctx, config.defaultRuntime()); err != nil {
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

// buildShim builds the shim and moves it to its path, so that Docker never runs an incomplete file.
func (h host) buildShim(ctx context.Context, source string) error {
	// sudo's PATH lacks Go's usual directory.
	program := cmp.Or(find("go"), "/usr/local/go/bin/go")
	if err := os.MkdirAll(filepath.Dir(h.shim), 0o755); err != nil {
		return err
	}
	built := h.shim + ".new"
	if err := run(ctx, source, []string{"CGO_ENABLED=0"}, program, "build", "-trimpath", "-o", built, "./cmd/runc-caps"); err != nil {
		return err
	}
	return os.Rename(built, h.shim)
}

func (h host) reload(ctx context.Context, runtime string) error {
	pid, ok := h.dockerd()
	if !ok {
		return fmt.Errorf("reloading Docker's configuration: %s has no process ID of a running dockerd; restart Docker", h.pidFile)
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

// shimUsers returns the names of the containers that were made with the shim.
// Without it they can be neither started nor entered.
func shimUsers(ctx context.Context) ([]string, error) {
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	defer docker.Close()
	all, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("listing the containers that use the OCI runtime %s: %w", runtimeName, err)
	}
	var users []string
	for _, c := range all.Items {
		details, err := docker.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
		if err != nil {
			return nil, fmt.Errorf("inspecting container %s: %w", c.ID, err)
		}
		if details.Container.HostConfig.Runtime == runtimeName {
			users = append(users, strings.TrimPrefix(details.Container.Name, "/"))
		}
	}
	return users, nil
}

type daemonFile struct {
	path    string
	content *string // nil if there is no file
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

func (f daemonFile) restore() error {
	if f.content != nil {
		return writeFile(f.path, []byte(*f.content), f.mode)
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
