// Package agentlog reads from the log of Cilium's agent why it ended by itself.
//
// The agent writes logrus' text format without times (pkg/logging). Its last message is of level fatal. Not each such
// message says that the version does not start with its configuration: see Cause.
package agentlog

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cause is why an agent ended.
type Cause string

const (
	// None: the log has no message of an end.
	None Cause = ""
	// Refused: the vendor's code does not start with what it is given.
	Refused Cause = "refused"
	// Slice: the slice ended the program for a reason of its own, and says so (package end of images/cilium).
	Slice Cause = "the slice's own"
	// Environment: the vendor's code reports the machine, the node, the cluster's API
	// server or a program that it runs. Elsewhere, or later, it may start.
	Environment Cause = "the environment's"
)

// markField and markSlice are Field and Slice of images/cilium/end, another module. A value that is quoted is no mark.
const (
	markField = "relapse.dev/end"
	markSlice = "slice"
)

// End is the message with which an agent ended.
type End struct {
	Cause Cause
	// Says is the message, with the error that it gives behind a colon.
	Says string
	// At is when it was written. It is zero for a log without times.
	At time.Time
}

// Same reports whether two ends give the same reason. Times, durations and addresses in them may differ.
func (e End) Same(other End) bool {
	return e.Cause == other.Cause && constant(e.Says) == constant(other.Says)
}

// variable matches what differs between two messages of the same reason.
var variable = regexp.MustCompile(strings.Join([]string{
	`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*`,            // time
	`0x[0-9a-fA-F]+`,                                  // address in memory
	`(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}`,            // MAC
	`\d+\.\d+\.\d+\.\d+(?::\d+)?`,                     // IPv4, and its port
	`\[?(?:[0-9a-fA-F]*:){2,}[0-9a-fA-F]*(?:\]:\d+)?`, // IPv6
	`\b(?:\d+(?:\.\d+)?(?:h|ms|m|µs|s))+\b`,           // duration
}, "|"))

func constant(text string) string { return variable.ReplaceAllString(text, "*") }

// Read finds the end in the log of one start. Lines may begin with the container runtime's time. Of several fatal
// messages the first one is the end: others can come before the agent exits (setupSleepBeforeFatal in
// daemon/cmd/daemon_main.go).
func Read(log string) End {
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		var at time.Time
		if stamp, rest, found := strings.Cut(line, " "); found {
			if t, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
				at, line = t, rest
			}
		}
		fields := parse(line)
		if fields["level"].text != "fatal" {
			continue
		}
		e := End{Cause: Refused, Says: fields["msg"].text, At: at}
		if cause, there := fields["error"]; there {
			e.Says += ": " + cause.text
		}
		switch mark := fields[markField]; {
		case mark == value{text: markSlice}:
			e.Cause = Slice
		case OfEnvironment(e.Says):
			e.Cause = Environment
		}
		return e
	}
	return End{}
}

type value struct {
	text   string
	quoted bool
}

// parse reads a line of logrus' text format: pairs KEY=VALUE, with values perhaps in Go's quotes; nil for another line.
func parse(line string) map[string]value {
	fields := map[string]value{}
	for line != "" {
		key, rest, found := strings.Cut(line, "=")
		if !found || key == "" || strings.ContainsAny(key, " \"") {
			return nil
		}
		v := value{quoted: strings.HasPrefix(rest, `"`)}
		if v.quoted {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil
			}
			rest = rest[len(quoted):]
			v.text, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		} else {
			v.text, rest, _ = strings.Cut(rest, " ")
		}
		if _, twice := fields[key]; !twice {
			fields[key] = v
		}
		line = strings.TrimLeft(rest, " ")
	}
	return fields
}

// environment are parts of fatal messages of Cilium 1.8 to 1.12, in lower case, that are about the environment.
var environment = []string{
	// The API server, and what the lab's manifests let the agent do there: pkg/k8s,
	// pkg/k8s/watchers, pkg/nodediscovery, and the texts of net, net/http and client-go.
	"unable to initialize kubernetes subsystem", "k8s client", "k8s api-server", "k8s rest client", "k8s version (",
	"unable to start k8s watchers", "unable to derive podcidr",
	"ciliumnode resource", "ciliumnode custom resource", "unable to join cluster", "unable to setup kvstore",
	"dial tcp", "i/o timeout", "tls handshake", "no such host", "server misbehaving", "x509:", "unexpected eof", ": eof",
	"unauthorized", "forbidden", "too many requests", "etcdserver:", "server is currently unable", "could not find the requested resource",
	// The operator's types, caches of the API server, mounts, and the node's address.
	"unable to find all cilium crds", "failed to wait for cache", "panic in kubernetes runtime", "unable to mount bpf", "mount info",
	"node ip not available", "timed out", "due to timeout", "timeout while", "timeout exceeded", "deadline exceeded",
	"context canceled",
	// iptables, its lock and the kernel's modules: pkg/datapath/iptables, pkg/modules.
	"xtables lock", "another app is currently holding", "iptables command", "exit status", "kernel modules",
	"modules could not be initialized",
	// Compilers and what else is run, and what the kernel is asked for:
	// pkg/datapath/linux/requirements.go, pkg/datapath/linux/probes, pkg/datapath/loader.
	"not ok", "failed to compile", "compilation", "bpftool", "executable file not found", "signal: ",
	// Files, folders and sockets: pkg/option (InitConfig), daemon/cmd (initEnv).
	"configuration directory", "error reading config file", "could not create", "could not change to", "unable to restore agent asset",
	"cannot mkdir", "failed to create pidfile", "cannot start gops server", "healthz",
	// Memory, cards and settings of the node.
	"failed to get system memory", "sysctl", "ip_local_port_range", "device interface", "routing device", "cannot retrieve",
}

// needsKernel matches what versions say of a kernel that lacks something: "BPF NodePort services
// needs kernel 4.17.0 or newer.", "requires support for ... (Linux 4.19 or later)".
var needsKernel = regexp.MustCompile(`(?:kernel|linux) v?\d+\.\d+|in the kernel|kernel support|supported by the kernel|kernel version`)

// errnos are the texts of the kernel's error numbers, without EINVAL: parsers of flags use its words for a value.
var errnos = func() (all []string) {
	const last = 133 // EHWPOISON, the highest of Linux
	for n := syscall.Errno(1); n <= last; n++ {
		if n != syscall.EINVAL {
			all = append(all, strings.ToLower(n.Error()))
		}
	}
	return all
}()

// OfEnvironment reports whether a message with which the vendor's code ends is about the environment.
func OfEnvironment(says string) bool {
	says = strings.ToLower(says)
	matches := func(part string) bool { return strings.Contains(says, part) }
	return slices.ContainsFunc(environment, matches) || slices.ContainsFunc(errnos, matches) || needsKernel.MatchString(says)
}
