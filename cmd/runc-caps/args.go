package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// requestKind says what the file holds that runc is about to read.
type requestKind int

const (
	noRequest   requestKind = iota // runc reads no capabilities
	bundleFile                     // an OCI config.json
	processFile                    // an OCI process, the object "process" of a config.json
)

// Flags of runc 1.1 to 1.4 that take their value from the next argument when
// it is not attached with "=". All others are switches. (runc: main.go,
// create.go, run.go, exec.go)
var (
	globalValues = []string{"log", "log-format", "root", "criu", "rootless"}
	createValues = []string{"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"}
	execValues   = []string{
		"console-socket", "pidfd-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g",
		"process", "p", "pid-file", "process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
	}
)

// requestFile returns the file in which the runc command line args (without
// the program's name) asks for capabilities.
func requestFile(args []string) (string, requestKind) {
	_, args = flagValue(args, nil, globalValues, false)
	if len(args) == 0 {
		return "", noRequest
	}
	switch command, rest := args[0], args[1:]; command {
	case "create", "run":
		// runc accepts these flags after the container's ID too.
		bundle, _ := flagValue(rest, []string{"bundle", "b"}, createValues, true)
		// Without --bundle this is config.json in the working directory,
		// which is runc's default as well.
		return filepath.Join(bundle, "config.json"), bundleFile
	case "exec":
		// What follows the container's ID is the command that runs in it.
		process, _ := flagValue(rest, []string{"process", "p"}, execValues, false)
		if process == "" {
			// runc takes the process from the container's own bundle, which
			// was narrowed when the container was created.
			return "", noRequest
		}
		return process, processFile
	}
	return "", noRequest
}

// flagValue reads flags as runc does (one dash or two, value attached with
// "=" or in the next argument) and returns the last value of the flag called
// one of names, and the arguments from the first one that is no flag. With
// interspersed it goes on behind such arguments, up to "--".
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
