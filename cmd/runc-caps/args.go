package main

import (
	"path/filepath"
	"slices"
	"strings"
)

type requestKind int

const (
	noRequest   requestKind = iota // runc reads no capabilities
	bundleFile                     // an OCI config.json
	processFile                    // an OCI process, the object "process" of a config.json
)

// Flags of runc 1.1 to 1.4 with a value, which is the next argument or follows "=".
// All others are switches. (runc: main.go, create.go, run.go, exec.go)
var (
	globalValues = []string{"log", "log-format", "root", "criu", "rootless"}
	createValues = []string{"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"}
	execValues   = []string{
		"console-socket", "pidfd-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g",
		"process", "p", "pid-file", "process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
	}
)

func requestFile(args []string) (string, requestKind) {
	_, args = flagValue(args, nil, globalValues, false)
	if len(args) == 0 {
		return "", noRequest
	}
	switch command, rest := args[0], args[1:]; command {
	case "create", "run":
		// runc also accepts these flags after the container's ID.
		bundle, _ := flagValue(rest, []string{"bundle", "b"}, createValues, true)
		// Without --bundle the file is in the working directory, as in runc.
		return filepath.Join(bundle, "config.json"), bundleFile
	case "exec":
		// The arguments after the container's ID are the command.
		process, _ := flagValue(rest, []string{"process", "p"}, execValues, false)
		if process == "" {
			// runc uses the container's bundle, which was narrowed at its creation.
			return "", noRequest
		}
		return process, processFile
	}
	return "", noRequest
}

// flagValue parses flags like runc (one or two dashes, the value after "=" or in the next argument). It returns the
// last value of the flag, and the arguments from the first non-flag on. With interspersed it continues after non-flags,
// up to "--".
func flagValue(args, names, valued []string, interspersed bool) (value string, rest []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return value, args[i+1:]
		}
		if len(arg) < 2 || arg[0] != '-' {
			if interspersed {
				continue
			}
			return value, args[i:]
		}
		name := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		name, attached, ok := strings.Cut(name, "=")
		if !ok && slices.Contains(valued, name) && i+1 < len(args) {
			i++
			attached = args[i]
		}
		if slices.Contains(names, name) {
			value = attached
		}
	}
	return value, nil
}
