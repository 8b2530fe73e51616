package images

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// loadedModules is where a kernel lists the modules that it has loaded. One without modules lacks the file.
var loadedModules = "/proc/modules"

var kernelConfig = "/proc/config.gz"

// KernelModules is for programs that end on a kernel without /proc/modules.
type KernelModules struct {
	// Source is the file of the vendor's module that names /proc/modules as a constant.
	Source string `json:"source"`
	// Path is the file of the image that takes its place. It lists what the kernel has built in.
	Path string `json:"path"`
}

// replaces is what takes the place of /proc/modules for this machine's kernel; the zero value if nothing does.
func (k *KernelModules) replaces() KernelModules {
	if k == nil {
		return KernelModules{}
	}
	if _, err := os.Stat(loadedModules); !errors.Is(err, fs.ErrNotExist) {
		return KernelModules{}
	}
	return *k
}

// String is a clause such as "reading modules from /var/lib/cilium/modules".
func (k KernelModules) String() string { return "reading modules from " + k.Path }

func (k KernelModules) patch(source, dir string) (patched string, err error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", fmt.Errorf("reading where programs name /proc/modules: %w", err)
	}
	changed := strings.ReplaceAll(string(text), `"/proc/modules"`, strconv.Quote(k.Path))
	if changed == string(text) {
		return "", fmt.Errorf("%s does not name /proc/modules: expected another file as kernelModules.source", k.Source)
	}
	patched = filepath.Join(dir, path.Base(k.Source))
	return patched, os.WriteFile(patched, []byte(changed), 0o600)
}

// moduleOptions are the kernel's options that build the netfilter modules for which vendors' programs look
// (net/ipv4/netfilter/Makefile of Linux, and others).
var moduleOptions = map[string]string{
	"ip_tables": "IP_NF_FILTER", "iptable_filter": "IP_NF_FILTER", "iptable_mangle": "IP_NF_MANGLE",
	"iptable_nat": "IP_NF_NAT", "iptable_raw": "IP_NF_RAW",
	"ip6_tables": "IP6_NF_FILTER", "ip6table_filter": "IP6_NF_FILTER", "ip6table_mangle": "IP6_NF_MANGLE",
	"ip6table_nat": "IP6_NF_NAT", "ip6table_raw": "IP6_NF_RAW",
	"xt_socket": "NETFILTER_XT_MATCH_SOCKET",
}

// builtIn lists modules that this machine's kernel has built in, as /proc/modules lists loaded ones. It lists none if
// the kernel does not show its configuration.
func builtIn() (string, error) {
	f, err := os.Open(kernelConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	var config []byte
	zipped, err := gzip.NewReader(f)
	if err == nil {
		config, err = io.ReadAll(zipped)
	}
	if err != nil {
		return "", fmt.Errorf("reading the kernel's configuration: %w", err)
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(moduleOptions)) {
		if strings.Contains("\n"+string(config), "\nCONFIG_"+moduleOptions[name]+"=y\n") {
			fmt.Fprintf(&all, "%s 0 0 - Live 0x0\n", name)
		}
	}
	return all.String(), nil
}
