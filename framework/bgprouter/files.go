package bgprouter

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"al.essio.dev/pkg/shellescape"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/bgp"
)

// answers are the commands whose answers can be in files, by the name of the answer. No route is judged without
// the answers in needed.
var answers = map[Kind]struct {
	commands map[string][]string
	needed   []string
}{
	FRR: {map[string][]string{
		"bgp4": {"vtysh", "-c", "show bgp ipv4 unicast json"}, "bgp6": {"vtysh", "-c", "show bgp ipv6 unicast json"},
		"neighbors": {"vtysh", "-c", "show bgp neighbors json"}, "vrfs": {"vtysh", "-c", "show bgp vrfs json"},
		"routes4": fib, "routes6": fib6, "neigh": neigh,
	}, []string{"bgp4", "neighbors"}},
	BIRD: {map[string][]string{
		"routes": {"birdc", "-r", bgp.BIRDShowRoutes}, "protocols": {"birdc", "-r", bgp.BIRDShowProtocols},
		"routes4": fib, "routes6": fib6, "neigh": neigh,
	}, []string{"routes", "protocols"}},
}

func (d Declared) filed() error {
	allowed := answers[d.Kind]
	names := slices.Sorted(maps.Keys(allowed.commands))
	for name := range d.Files {
		if allowed.commands[name] == nil {
			return fmt.Errorf("files: %s: expected %s", name, oneOf(names))
		}
	}
	for _, name := range allowed.needed {
		if d.Files[name] == "" {
			return fmt.Errorf("files: expected %s as well, with what %s prints", name, shellescape.QuoteCommand(allowed.commands[name]))
		}
	}
	return nil
}

// answered is the answer to a command, from its file. A router without a file for IPv6 is read for IPv4 alone.
func (d Declared) answered(command []string) (string, error) {
	line, name := shellescape.QuoteCommand(command), ""
	for key, words := range answers[d.Kind].commands {
		if slices.Equal(words, command) {
			name = key
		}
	}
	switch file := d.Files[name]; {
	case file != "":
		return readAnswer(file)
	case name == "routes6" && d.Kind == FRR && d.Files["bgp6"] == "":
		return "[]", nil
	case name == "bgp6":
		return "", fmt.Errorf("%w: there is no file with what %s prints", bgp.ErrRefused, line)
	}
	return "", fmt.Errorf("there is no file with what %s prints", line)
}

// written is the time of the oldest file: what all of them say was so then.
func (d Declared) written() time.Time {
	oldest := time.Now()
	for _, file := range d.Files {
		if info, err := os.Stat(file); err == nil && info.ModTime().Before(oldest) {
			oldest = info.ModTime()
		}
	}
	return oldest
}

// aged adds a remark if files are much older or younger than the snapshot. Are begins it: The files of tor1 are.
func (d Declared) aged(router *snapshot.Router, are string) {
	switch age := cmp.Or(d.Now, time.Now()).Sub(router.At); {
	case age >= oldDump:
		remark(router, true, "%s old: %s.", are, age.Round(time.Minute))
	case age <= -oldDump:
		remark(router, true, "%s younger than the rest: %s.", are, -age.Round(time.Minute))
	}
}

func readAnswer(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text := limited{most: maxAnswer}
	if _, err = io.Copy(&text, f); text.over {
		err = fmt.Errorf("%s has more than %d bytes", file, maxAnswer)
	}
	return text.text.String(), err
}
