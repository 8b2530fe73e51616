package agentlog

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/topology/must"
)

// Messages of the vendor's code, as the agent prints them. The comments say where they are in the source.
const (
	// pkg/option/config.go of 1.10.0, populateMasqueradingSettings.
	bothKeys = `level=fatal msg="Failed to populate masquerading settings" error="--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive" subsys=config`
	// daemon/cmd/daemon.go and pkg/option/config.go of 1.12.0, NewDaemon and checkIPv4NativeRoutingCIDR.
	noCIDR = `level=fatal msg="Error while creating daemon" error="invalid daemon configuration: native routing cidr must be configured with option --ipv4-native-routing-cidr in combination with --enable-ipv4-masquerade --tunnel=disabled --ipam=kubernetes --enable-ipv4=true" subsys=daemon`
	// pkg/option/config.go of 1.11.6.
	bothCIDRs  = `level=fatal msg="Cannot specify both native-routing-cidr and ipv4-native-routing-cidr" subsys=config`
	allocation = `level=fatal msg="Invalid identity allocation mode \"etcd\". It must be one of kvstore or crd" subsys=config`
	wrongFlag  = `level=fatal msg="Incorrect config-map flag value" error="option mtu: unable to cast \"wrong\" of type string to int64" subsys=config`
	noFolder   = `level=fatal msg="Non-existent configuration directory /tmp/cilium/config-map" subsys=config`
	noMemory   = `level=fatal msg="Failed to get system memory" error="open /proc/meminfo: permission denied" subsys=config`
	// daemon/cmd of 1.11.6.
	wrongMode    = `level=fatal msg="Error while creating daemon" error="unable to initialize Kube proxy replacement options: Invalid value for --node-port-mode: dsrr" subsys=daemon`
	oldKernel    = `level=fatal msg="Error while creating daemon" error="unable to initialize Kube proxy replacement options: BPF NodePort services needs kernel 4.17.0 or newer." subsys=daemon`
	noKubernetes = `level=fatal msg="Unable to initialize Kubernetes subsystem" error="unable to create k8s client: unable to create k8s client: Get \"https://10.4.94.1:6443/api/v1/namespaces/kube-system\": dial tcp 10.4.94.1:6443: connect: no route to host" subsys=daemon`
	noSysctl     = `level=fatal msg="Error when enabling sysctl parameters" error="could not open the sysctl file /proc/sys/net/ipv4/ip_forward: open /proc/sys/net/ipv4/ip_forward: read-only file system" subsys=daemon`
	// pkg/k8s, pkg/k8s/watchers and pkg/nodediscovery of 1.11.6.
	noPodCIDR  = `level=fatal msg="Unable to derive PodCIDR via Node or CiliumNode resource, giving up" subsys=k8s`
	notSynced  = `level=fatal msg="Timed out waiting for pre-existing resources to be received; exiting" subsys=k8s-watcher`
	notCreated = `level=fatal msg="Unable to create CiliumNode resource" error="Post \"https://10.4.94.1:6443/apis/cilium.io/v2/ciliumnodes\": context deadline exceeded" subsys=nodediscovery`
	forbidden  = `level=fatal msg="Unable to update CiliumNode resource" error="ciliumnodes.cilium.io \"node1\" is forbidden: User \"system:serviceaccount:kube-system:cilium\" cannot update resource" subsys=nodediscovery`
	notInit    = `level=fatal msg="Unable to initialize local node due to timeout" subsys=nodediscovery`
	// pkg/datapath/linux and pkg/datapath/loader of 1.11.6.
	noBPFTool  = `level=fatal msg="could not run bpftool" error="signal: killed" subsys=probes`
	noClang    = `level=fatal msg="clang: NOT OK" error="exec: \"clang\": executable file not found in $PATH" subsys=linux-datapath`
	notBuilt   = `level=fatal msg="Failed to compile XDP program" error="Failed to compile bpf_xdp.o: Failed to compile bpf_xdp.o: exit status 1" subsys=datapath-loader`
	noIPv6     = `level=fatal msg="kernel: ipv6 is enabled in agent but ipv6 is either disabled or not compiled in the kernel" subsys=linux-datapath`
	noDevice   = `level=fatal msg="NodePort enabled but direct routing device's IPv4 address not found" directRoutingIface=eth0 subsys=datapath-linux-config`
	noTables   = `level=fatal msg="Error while creating daemon" error="error while initializing daemon: cannot add custom chain CILIUM_INPUT: unable to run 'iptables -t filter -N CILIUM_INPUT' iptables command: Another app is currently holding the xtables lock. Perhaps you want to use the -w option? (exit status 4)" subsys=daemon`
	noModules  = `level=fatal msg="Unable to get information about kernel modules" error="open /proc/modules: no such file or directory" subsys=iptables`
	noSpace    = `level=fatal msg="Failed to write node configuration file" error="write /var/run/cilium/state/globals/node_config.h: no space left on device" subsys=daemon`
	noEphemera = `level=fatal msg="Could not create runtime directory" error="mkdir /var/run/cilium: disk quota exceeded" subsys=daemon`
)

func TestRead(t *testing.T) {
	for _, test := range []struct {
		name, log string
		cause     Cause
		says      string
	}{
		{"both keys", "level=info msg=\"Cilium\" subsys=config\n" + bothKeys + "\n", Refused,
			"Failed to populate masquerading settings: --enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive"},
		{"with the runtime's time", "2026-11-23T10:00:01.5Z level=info msg=Cilium\n2026-11-23T10:00:02.25Z " + allocation, Refused,
			`Invalid identity allocation mode "etcd". It must be one of kvstore or crd`},
		{"with logrus' time", `time="2026-01-02T03:04:05Z" ` + bothCIDRs, Refused, "Cannot specify both native-routing-cidr and ipv4-native-routing-cidr"},
		{"two messages", wrongFlag + "\n" + noFolder, Refused, `Incorrect config-map flag value: option mtu: unable to cast "wrong" of type string to int64`},
		{"nothing", "", None, ""},
		{"no end", `level=info msg="The iptables rules are installed" subsys=slice`, None, ""},
		{"one that is quoted", `level=error msg="previous agent: level=fatal msg=\"no\"" subsys=daemon`, None, ""},
		{"a panic", "panic: runtime error: invalid memory address or nil pointer dereference\n\ngoroutine 1 [running]:", None, ""},
		{"a mark that is quoted", `level=fatal msg="Error while creating daemon" error="invalid daemon configuration: option relapse.dev/end=slice" subsys=daemon`, Refused,
			"Error while creating daemon: invalid daemon configuration: option relapse.dev/end=slice"},
	} {
		must.Equal(t, test.name, End{Cause: test.cause, Says: test.says}, Read(test.log), cmpopts.IgnoreFields(End{}, "At"))
	}
	must.Equal(t, "it ended at", 250_000_000, Read("2026-11-23T10:00:02.25Z "+allocation).At.Nanosecond())
}

// The vendor's fatal messages are refusals, unless they are about the environment.
func TestCause(t *testing.T) {
	for cause, lines := range map[Cause][]string{
		Refused: {bothKeys, noCIDR, bothCIDRs, allocation, wrongFlag, wrongMode},
		Environment: {
			noFolder, noMemory, oldKernel, noKubernetes, noSysctl, noPodCIDR, notSynced, notCreated, forbidden, notInit,
			noBPFTool, noClang, notBuilt, noIPv6, noDevice, noTables, noModules, noSpace, noEphemera,
		},
	} {
		for _, line := range lines {
			must.Equal(t, line, cause, Read(line).Cause)
		}
	}
}

// The last message of a slice has the cause that the slice marks in it.
func TestSlices(t *testing.T) {
	golden, err := filepath.Glob("../../../../images/cilium/end/testdata/*.log")
	if err != nil || len(golden) == 0 {
		t.Fatalf("%v, %v", golden, err)
	}
	for _, file := range golden {
		text := must.Read(t, file)
		want := Slice
		if strings.HasPrefix(filepath.Base(file), "refused") {
			want = Refused
		}
		must.Equal(t, file, want, Read(string(text)).Cause)
	}
}

func TestSame(t *testing.T) {
	says := func(text string) End { return End{Cause: Refused, Says: text} }
	for _, test := range []struct {
		name string
		a, b End
		want bool
	}{
		{"the same", Read(bothKeys), Read("2026-11-23T10:00:02Z " + bothKeys), true},
		{"another", Read(bothKeys), Read(noCIDR), false},
		{"another cause", says("a"), End{Cause: Slice, Says: "a"}, false},
		{"addresses and times", says("at 2026-11-23T10:00:02Z 10.0.0.1:34512 and [fd00::1]:80 of 0xc00012 after 1m2.5s"),
			says("at 2026-11-23T10:01:07Z 10.0.0.2:34999 and [fd00::2]:81 of 0xc00ff2 after 37ms"), true},
		{"numbers", says("MTU '-1' cannot be negative"), says("MTU '-2' cannot be negative"), false},
	} {
		must.Equal(t, test.name, test.want, test.a.Same(test.b))
	}
}
