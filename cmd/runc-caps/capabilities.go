package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// without removes the capabilities missing from all sets of the request (bounding,
// effective, inheritable, permitted, ambient), and reports whether that changed it.
// Everything else is kept, including unknown keys.
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
			kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				return slices.Contains(missing, name)
			})
			if len(kept) == len(names) {
				continue
			}
			changed = true
			var err error
			if bySet[set], err = marshal(kept); err != nil {
				return nil, false, err
			}
		}
		out, err := marshal(bySet)
		return out, changed, err
	})
}

func edit(object json.RawMessage, path []string, change func(json.RawMessage) (json.RawMessage, bool, error)) (json.RawMessage, bool, error) {
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
