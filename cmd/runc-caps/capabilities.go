package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

// requestFile is the file with the capabilities of a runc command line, empty if it has none.
// containerd's shim writes a flag and its value as two arguments, and the command of exec into
// the file of --process (containerd/go-runc, runc.go).
func requestFile(args []string) string {
	value := func(flag string) string {
		i := slices.Index(args, flag) + 1
		if i == 0 || i == len(args) {
			return ""
		}
		return args[i]
	}
	if bundle := value("--bundle"); bundle != "" {
		return filepath.Join(bundle, "config.json")
	}
	return value("--process")
}

// without removes the missing capabilities from all sets of a request (bounding, effective,
// inheritable, permitted, ambient): an OCI config.json, or its object "process" alone. It
// keeps everything else, also what it does not know, and returns nil if nothing is to be removed.
func without(missing []string, request []byte) ([]byte, error) {
	// Other members stay as they are: a number of 64 bits is no float.
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(request, &whole); err != nil {
		return nil, err
	}
	process := whole
	raw, isBundle := whole["process"]
	if isBundle {
		process = nil
		if err := json.Unmarshal(raw, &process); err != nil {
			return nil, fmt.Errorf("process: %w", err)
		}
	}
	var sets map[string][]string
	if raw, there := process["capabilities"]; there {
		if err := json.Unmarshal(raw, &sets); err != nil {
			return nil, fmt.Errorf("capabilities: %w", err)
		}
	}
	isMissing := func(name string) bool { return slices.Contains(missing, name) }
	changed := false
	for set, names := range sets {
		changed = changed || slices.ContainsFunc(names, isMissing)
		sets[set] = slices.DeleteFunc(names, isMissing)
	}
	if !changed {
		return nil, nil
	}
	var err error
	if process["capabilities"], err = json.Marshal(sets); err != nil {
		return nil, err
	}
	if isBundle {
		if whole["process"], err = json.Marshal(process); err != nil {
			return nil, err
		}
	}
	return json.Marshal(whole)
}
