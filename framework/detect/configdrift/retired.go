package configdrift

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology/each"
)

// retired is a key that the vendor's reference no longer has.
type retired struct {
	// deprecated is the first version whose reference lacks the key and that still reads it, gone the first that does
	// not read it; empty if there is none.
	deprecated, gone string
	// now is the new name of the setting; empty if there is none.
	now string
	// says is the vendor's deprecation; empty for a key that is only hidden.
	says string
	// kind and defaults are stated if no reference has the key, or if the last one that has it is no longer right.
	kind     string
	defaults []since
	// words are the values of the new name, by the values of the old name; nil if they are the same.
	words map[string]string
	// conflict is the error of versions that read both names and do not start if both are set; empty if they start.
	conflict string
}

type since struct{ version, value string }

// retiredKeys are keys that have another name, and deprecated keys about which the upgrade notes say too little. Each
// was read in the vendor's code: daemon/cmd/daemon_main.go registers flags and deprecations, pkg/option/config.go
// reads both names, unless another place is stated.
var retiredKeys = map[string]retired{
	// pkg/option/config.go, populateMasqueradingSettings of 1.10.
	"masquerade": {deprecated: "1.10.0", gone: "1.11.0", now: "enable-ipv4-masquerade",
		says:     "This option will be removed in v1.11 in favour of enable-ipv4-masquerade",
		conflict: "Failed to populate masquerading settings: --enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive"},
	"native-routing-cidr": {deprecated: "1.11.0", gone: "1.12.0", now: "ipv4-native-routing-cidr",
		says: "This option will be removed in v1.12", conflict: "Cannot specify both native-routing-cidr and ipv4-native-routing-cidr"},
	"enable-host-reachable-services": {deprecated: "1.12.0", gone: "1.13.0", now: "bpf-lb-sock",
		says: "This option will be removed in v1.13. Use --bpf-lb-sock instead"},
	// Tunnel modes are values of tunnel-protocol since then; its default is vxlan.
	"tunnel": {deprecated: "1.14.0", gone: "1.15.0", now: "routing-mode",
		says:  "This option will be removed in v1.15. Please use --routing-mode and --tunnel-protocol instead.",
		words: map[string]string{"": "tunnel", "vxlan": "tunnel", "disabled": "native"}},
	// pkg/loadbalancer/config.go from 1.18 on.
	"node-port-mode":         {deprecated: "1.10.0", gone: "1.20.0", now: "bpf-lb-mode"},
	"node-port-acceleration": {deprecated: "1.10.0", now: "bpf-lb-acceleration"},
	"node-port-algorithm":    {deprecated: "1.10.0", gone: "1.20.0", now: "bpf-lb-algorithm"},
	"enable-ipv4-egress-gateway": {deprecated: "1.18.0", gone: "1.19.0", now: "enable-egress-gateway",
		says: "Use --enable-egress-gateway instead"},
	"encryption-strict-mode-cidr": {deprecated: "1.19.0", gone: "1.20.0", now: "encryption-strict-egress-cidr",
		says: "Please use --encryption-strict-egress-cidr instead. This option will be removed in v1.20"},
	"enable-encryption-strict-mode": {deprecated: "1.19.0", gone: "1.20.0", now: "enable-encryption-strict-mode-egress",
		says: "Please use --enable-encryption-strict-mode-egress instead. This option will be removed in v1.20"},

	"bpf-compile-debug": {deprecated: "1.10.0", gone: "1.11.0", defaults: []since{{"1.10.0", "true"}},
		says: "This flag is no longer available and will be removed in v1.11"},
	"hubble-flow-buffer-size": {deprecated: "1.10.0", gone: "1.11.0", defaults: []since{{"1.10.0", "0"}},
		says: "Use hubble-event-buffer-capacity instead."},
	"endpoint-interface-name-prefix": {deprecated: "1.12.0", gone: "1.13.0", defaults: []since{{"1.12.0", ""}},
		says: "This option no longer has any effect and will be removed in v1.13."},
	"enable-icmp-rules":      {deprecated: "1.11.0", kind: "bool", defaults: []since{{"1.11.0", "false"}, {"1.12.0", "true"}}},
	"install-iptables-rules": {deprecated: "1.13.7"}, // hidden, and read to this day
	"nodes-gc-interval":      {deprecated: "1.11.1", says: "Unused flag, will be removed in future Cilium releases"},
	"enable-runtime-device-detection": {deprecated: "1.16.0", gone: "1.18.0", defaults: []since{{"1.16.0", "true"}},
		says: "Runtime device detection and datapath reconfiguration is now the default and only mode of operation"},
	// Upgrade notes say of these that they are deprecated, and not by name that they are removed.
	"bpf-lb-bypass-fib-lookup": {deprecated: "1.11.1", gone: "1.12.0", says: "This option will be removed in v1.12."},
	"k8s-watcher-endpoint-selector": {deprecated: "1.17.0", gone: "1.18.0",
		says: "This option is deprecated and no longer has any effect. It will be removed in v1.18"},
	"enable-recorder":                 {deprecated: "1.18.0", gone: "1.19.0", says: "The feature will be removed in v1.19"},
	"enable-hubble-recorder-api":      {deprecated: "1.18.0", gone: "1.19.0", says: "The feature will be removed in v1.19"},
	"hubble-recorder-storage-path":    {deprecated: "1.18.0", gone: "1.19.0", says: "The feature will be removed in v1.19"},
	"hubble-recorder-sink-queue-size": {deprecated: "1.18.0", gone: "1.19.0", says: "The feature will be removed in v1.19"},
	// Of this one they announce it a minor too early.
	"k8s-api-server": {deprecated: "1.18.0", gone: "1.20.0", says: "use --k8s-api-server-urls"},
}

// names returns the names of a key's setting, the newest first.
func names(key string) []string {
	now := cmp.Or(retiredKeys[key].now, key)
	sameSetting := func(old string) bool { return retiredKeys[old].now == now }
	return append([]string{now}, each.Where(slices.Sorted(maps.Keys(retiredKeys)), sameSetting)...)
}

// inNewWords is the value of a key in the words of the setting's new name; NotKnown if it has none.
func inNewWords(key, value string) string {
	r := retiredKeys[key]
	if r.words == nil || value == Refused || value == NotKnown {
		return value
	}
	if word, there := r.words[value]; there {
		return word
	}
	return NotKnown
}

// oldCounts begins the old names that win if the new name is set too (NewConfig in pkg/loadbalancer/config.go). Of
// other settings the new name wins.
const oldCounts = "node-port-"

// conflicts returns the error with which a version refuses an old name beside the new one; empty if it starts.
func conflicts(version, old string, config map[string]string) string {
	r := retiredKeys[old]
	a, b := config[old], config[r.now]
	switch {
	case r.now == "" || a == "" && b == "":
		return ""
	case r.conflict != "":
		if a == "" || b == "" {
			return ""
		}
		return r.conflict
	case old == "node-port-mode" && reached(version, "1.18.0"):
		if a == "" || b == "snat" || b == "" {
			return ""
		}
		return "both --bpf-lb-mode and --node-port-mode were set. Use --bpf-lb-mode instead."
	case strings.HasPrefix(old, oldCounts) && a != b:
		return "Both --" + r.now + " and --" + old + " were set. Only use --" + r.now + " instead."
	}
	return ""
}

// The first versions of Cilium's agent that do not start with a value of another type, or with an empty value.
// Earlier versions read false or 0. Agents of 1.8 to 1.12 were asked (pkg/option/config.go reads with viper, and 1.12
// validates each key), and none later than that about empty numbers.
const (
	refusesWrong = "1.11.0"
	refusesEmpty = "1.12.0"
	emptyNumber  = "1.13.0" // from here on it is not known
)

// bad is how a version reads a value that is empty or not of its key's type.
func bad(version, kind, raw string) string {
	first := refusesWrong
	if raw == "" {
		first = refusesEmpty
	}
	switch {
	case raw == "" && kind == "int" && reached(version, emptyNumber):
		return NotKnown
	case reached(version, first):
		return Refused
	}
	return map[string]string{"bool": "false", "duration": "0s", "int": "0"}[kind]
}

// lacksCIDR reports whether an agent does not start because native routing needs the range in
// which it does not masquerade (checkIPv4NativeRoutingCIDR in pkg/option/config.go), under the
// name that the version reads.
func (s configured) lacksCIDR() (key string, lacks bool) {
	key = "ipv4-native-routing-cidr"
	if _, read := s.option(key); !read {
		key = "native-routing-cidr"
	}
	equals := func(key, value string) bool { return s.inForce(key).value == value }
	native := inNewWords("tunnel", s.inForce("tunnel").value) == "native" || equals("routing-mode", "native")
	cloud := equals("ipam", "eni") || equals("ipam", "alibabacloud")
	agent := equals("enable-ip-masq-agent", "true") && reached(s.Version, "1.15.0")
	ipv4 := equals("enable-ipv4", "true") && !equals("disable-ipv4", "true")
	masquerades := equals("masquerade", "true") || equals("enable-ipv4-masquerade", "true")
	return key, native && ipv4 && masquerades && !cloud && !agent && equals(key, "")
}

// idle matches what the vendor says of a deprecated key that has no effect any more: its default holds.
var idle = regexp.MustCompile(`no-op|no longer ha(s|ve)|no effect|functional effect|only mode of operation|no longer available`)

func (o Option) idles() bool { return idle.MatchString(o.Deprecated) }
