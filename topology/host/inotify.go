package host

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// inotifyLimits are the values that kind recommends against "too many open
// files" (its documentation, "Known issues"). All processes of root share them,
// in containers too. The default of 128 instances is enough for two labs.
var inotifyLimits = map[string]int{
	"fs.inotify.max_user_instances": 512,
	"fs.inotify.max_user_watches":   524288,
}

// judgeInotify compares the kernel's limits, by name, with the limits that labs need.
// It returns the new values of limits that must be raised.
func judgeInotify(values map[string]string) (c Check, raise map[string]string) {
	raise = map[string]string{}
	var found, wanted []string
	for _, name := range slices.Sorted(maps.Keys(inotifyLimits)) {
		least := inotifyLimits[name]
		found = append(found, name+" is "+sysctl(values[name]))
		wanted = append(wanted, fmt.Sprintf("%s %d", name, least))
		if value, err := strconv.Atoi(strings.TrimSpace(values[name])); err != nil || value < least {
			raise[name] = strconv.Itoa(least)
		}
	}
	c = passed("inotify limits", strings.Join(found, ", "))
	if len(raise) > 0 {
		c.State, c.Want = Curable, "the nodes of several labs need at least "+strings.Join(wanted, " and ")
		c.Cure = "sysctl -w"
		for _, name := range slices.Sorted(maps.Keys(raise)) {
			c.Cure += " " + name + "=" + raise[name]
		}
	}
	return c, raise
}

// value is a setting's value. If its file lists several, it is the selected one.
func (h host) value(name string) string {
	text := read(h.sysctl(name))
	return cmp.Or(selected(text), strings.TrimSpace(text))
}

func (h host) limits() map[string]string {
	values := map[string]string{}
	for name := range inotifyLimits {
		values[name] = read(h.sysctl(name))
	}
	return values
}

// sysctl is the file of a setting, whose name is a sysctl or a path.
func (h host) sysctl(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(h.sysctls, strings.ReplaceAll(name, ".", "/"))
}

// raiseLimits sets kernel settings, by name, until the next boot.
func (h host) raiseLimits(values map[string]string, announce func(string)) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		before := h.value(name)
		// Recorded first, so that a killed set-up can be undone.
		err := h.remember(func(r *record) { r.Sysctls[name] = change{Before: &before, After: values[name]} })
		if err != nil {
			return err
		}
		announce(fmt.Sprintf("raising %s from %s to %s until the next boot", name, sysctl(before), values[name]))
		if err := set(name, h.sysctl(name), values[name]); err != nil {
			return err
		}
	}
	return nil
}

// lowerLimits reverts raiseLimits, except where the value was changed since.
func (h host) lowerLimits(changes map[string]change, announce func(string)) error {
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if err := changes[name].revert(name, h.sysctl(name), h.value(name), announce); err != nil {
			return err
		}
	}
	return nil
}

// revert sets a setting back whose value is now, unless somebody else has changed it or the machine was rebooted.
func (c change) revert(name, path, now string, announce func(string)) error {
	switch {
	case c.Before == nil || now == *c.Before:
		return nil
	case now != c.After:
		announce(fmt.Sprintf("leaving %s at %s: it was changed after it was set to %s", name, now, c.After))
		return nil
	}
	announce(fmt.Sprintf("setting %s back from %s to %s", name, now, *c.Before))
	return set(name, path, *c.Before)
}

func set(name, path, value string) error {
	// Not writeFile: files of /proc cannot be replaced.
	if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
		return fmt.Errorf("setting %s to %s: %w", name, value, err)
	}
	return nil
}
