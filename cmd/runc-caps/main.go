// Runc-caps is an OCI runtime in front of runc for machines that do not grant root
// every capability (a virtual machine or a container with a limited bounding set).
//
// A privileged container requests all capabilities of the kernel. If one is missing from its bounding set, runc fails
// with "unable to apply caps: operation not permitted", even if the container does not need it. Runc-caps removes the
// missing ones from the request and then executes runc. For create and run the request is the bundle's config.json,
// for exec the file of --process. Other commands are passed on unchanged.
//
// It grants nothing and changes nothing else, such as oomScoreAdj and rlimits that require CAP_SYS_RESOURCE.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/relapse-dev/relapse/topology/host/bounding"
)

func main() {
	if err := narrow(os.Args[1:]); err != nil {
		// runc runs anyway: it reports errors of the request in the file of --log, which Docker reads.
		fmt.Fprintln(os.Stderr, "runc-caps:", err)
	}
	// Without the shim Docker also finds runc by PATH.
	runc, err := exec.LookPath("runc")
	if err != nil {
		fail(err)
	}
	// exec and not a child: containerd's shim watches this process, passes descriptors to it and reads its exit status.
	args := append([]string{runc}, os.Args[1:]...)
	fail(fmt.Errorf("executing %s: %w", runc, syscall.Exec(runc, args, os.Environ())))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "runc-caps:", err)
	os.Exit(1)
}

// narrow removes the capabilities that this machine does not grant from the request file of the arguments, if any.
func narrow(args []string) error {
	path, kind := requestFile(args)
	if kind == noRequest {
		return nil
	}
	missing, err := bounding.Missing(0)
	if err != nil {
		return err
	}
	if len(missing) == 0 {
		return nil
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	edited, changed, err := without(missing, old, kind)
	if err != nil {
		return fmt.Errorf("reading capabilities from %s: %w", path, err)
	}
	if !changed {
		return nil
	}
	// In place, which keeps owner, mode and links. Only this process, as runc, reads it.
	if err := os.WriteFile(path, edited, 0o600); err != nil {
		return fmt.Errorf("writing narrowed capabilities: %w", err)
	}
	return nil
}

// without removes the capabilities missing from all sets of the request (bounding, effective, inheritable, permitted,
// ambient), and reports whether that changed it. Everything else is kept, including unknown keys.
func without(missing []string, request []byte, kind requestKind) ([]byte, bool, error) {
	path := []string{"capabilities"}
	if kind == bundleFile {
		path = []string{"process", "capabilities"}
	}
	return edit(request, path, func(sets json.RawMessage) (json.RawMessage, bool, error) {
		var bySet map[string]json.RawMessage
		if err := json.Unmarshal(sets, &bySet); err != nil {
			return nil, false, err
		}
		changed := false
		for set, raw := range bySet {
			var names []string
			if err := json.Unmarshal(raw, &names); err != nil {
				return nil, false, fmt.Errorf("set %q: %w", set, err)
			}
			remaining := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				return slices.Contains(missing, name)
			})
			if len(remaining) == len(names) {
				continue
			}
			changed = true
			var err error
			if bySet[set], err = marshal(remaining); err != nil {
				return nil, false, err
			}
		}
		out, err := marshal(bySet)
		return out, changed, err
	})
}

type changeFunc func(json.RawMessage) (out json.RawMessage, changed bool, err error)

func edit(object json.RawMessage, path []string, change changeFunc) (json.RawMessage, bool, error) {
	if len(path) == 0 {
		return change(object)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil {
		return nil, false, err
	}
	member, ok := members[path[0]]
	if !ok || bytes.Equal(member, []byte("null")) {
		return object, false, nil
	}
	member, changed, err := edit(member, path[1:], change)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", path[0], err)
	}
	if !changed {
		return object, false, nil
	}
	members[path[0]] = member
	out, err := marshal(members)
	return out, true, err
}

// marshal is json.Marshal without its escaping of <, > and &, which would change other strings.
func marshal(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out.Bytes()), nil
}
