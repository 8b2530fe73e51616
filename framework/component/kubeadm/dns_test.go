package kubeadm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestCorefile(t *testing.T) {
	upstream := netip.MustParseAddrPort("10.64.4.11:5300")
	const rest = "    health\n    ready\n    kubernetes example.org. in-addr.arpa\n"
	for _, test := range []struct {
		name, text string
		zone, err  string
		replaced   []string
		has        string
	}{
		{name: "kubeadm's", zone: "cluster.local", has: "    forward . 10.64.4.11:5300 {\n       max_concurrent 1000\n    }\n"},
		{
			name: "another zone and resolvers", text: ".:53 {\n" + rest + "    forward . tls://9.9.9.9 tls://149.112.112.112 { # outside\n    }\n}\n",
			zone: "example.org", has: "    forward . 10.64.4.11:5300 {\n    }\n",
			replaced: []string{"line 5: forward . to tls://9.9.9.9 tls://149.112.112.112 is replaced by 10.64.4.11:5300, a DNS server inside the lab"},
		},
		{name: "a comment is no plugin", text: ".:53 {\n" + rest + "    # forward . 8.8.8.8\n}\n", err: "it has no plugin forward: expected one, as in forward . /etc/resolv.conf"},
		{name: "no zone", text: ".:53 {\n health\n ready\n forward . 8.8.8.8\n}\n", err: "it has no plugin kubernetes with a zone"},
		{name: "half a forward", text: ".:53 {\n" + rest + " forward .\n}\n", err: "line 5: forward .: expected forward FROM TO"},
		{name: "a file", text: "import ../other.conf\n", err: "line 1: import ../other.conf: the lab has no such file: expected its lines in place of the import"},
		{
			name: "patterns of files, as k3s and AKS have them", text: ".:53 {\n" + rest + "    import /etc/coredns/custom/*.override\n    forward . 8.8.8.8\n}\nimport /etc/coredns/custom/*.server\n",
			zone: "example.org", has: "    forward . 10.64.4.11:5300\n}\n",
			replaced: []string{
				"line 5: import /etc/coredns/custom/*.override is left out: the lab has no such files; a Corefile with their lines in its place has what they change",
				"line 6: forward . to 8.8.8.8 is replaced by 10.64.4.11:5300, a DNS server inside the lab",
				"line 8: import /etc/coredns/custom/*.server is left out: the lab has no such files; a Corefile with their lines in its place has what they change",
			},
		},
		{
			name: "a snippet", text: "(probed) {\n    health\n    ready\n}\n.:53 {\n    import probed\n    kubernetes a.b\n    forward . 8.8.8.8\n}\n", zone: "a.b", has: "    import probed\n",
			replaced: []string{"line 8: forward . to 8.8.8.8 is replaced by 10.64.4.11:5300, a DNS server inside the lab"},
		},
		{
			name: "not ready", text: ".:53 {\n    health\n    kubernetes a.b\n    forward . 8.8.8.8\n}\n", zone: "a.b", has: "    health\n    ready\n    kubernetes a.b\n",
			replaced: []string{
				"line 4: forward . to 8.8.8.8 is replaced by 10.64.4.11:5300, a DNS server inside the lab",
				"the plugins ready are added: the probes of kubeadm's Deployment ask them",
			},
		},
		{name: "NodeLocal DNSCache", text: "cluster.local:53 {\n    bind 169.254.20.10\n    forward . __PILLAR__CLUSTER__DNS__\n}\n",
			err: "it is of NodeLocal DNSCache: expected that of CoreDNS, as the ConfigMap coredns has it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := NewCorefile(test.text, upstream)
			if test.err != "" {
				must.Equal(t, "", test.err, fmt.Sprint(err))
				return
			}
			if err != nil || c.Zone != test.zone || !slices.Equal(c.Replaced, test.replaced) || !strings.Contains(c.Text, test.has) {
				t.Errorf("%v; zone %s, replaced %q\n%s", err, c.Zone, c.Replaced, c.Text)
			}
		})
	}
}

// The name of a pod's address is asked for only if the plugin kubernetes alone answers for it.
func TestReverse(t *testing.T) {
	const forward = "    forward . 8.8.8.8\n    health\n    ready\n}\n"
	for text, want := range map[string]bool{
		"": true,
		".:53 {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n       fallthrough in-addr.arpa\n    }\n" + forward: true,
		".:53 {\n    kubernetes cluster.local\n" + forward:                                                                 false,
		"10.in-addr.arpa:53 {\n    forward . 10.1.2.3\n}\n.:53 {\n    kubernetes cluster.local in-addr.arpa\n" + forward:   false,
	} {
		must.Equal(t, text, want, must.Get(NewCorefile(text, netip.MustParseAddrPort("10.64.4.11:5300")))(t).Reverse)
	}
}

func TestHalf(t *testing.T) {
	pod := func(version string, ready corev1.ConditionStatus) corev1.Pod {
		return corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Image: DNSImage(version)}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	old, fresh, starting := pod("1.12.1", corev1.ConditionTrue), pod("1.15.0", corev1.ConditionTrue), pod("1.15.0", corev1.ConditionFalse)
	for _, test := range []struct {
		name string
		pods []corev1.Pod
		half bool
	}{
		{"before", []corev1.Pod{old, old}, false},
		{"the first is new", []corev1.Pod{old, old, fresh}, false},
		{"a new one starts", []corev1.Pod{old, fresh, starting}, false},
		{"held", []corev1.Pod{old, fresh, fresh}, true},
		{"over", []corev1.Pod{fresh, fresh}, false},
	} {
		if ok, saw := (DNS{Version: "1.15.0"}).half(test.pods); ok != test.half || saw == "" {
			t.Errorf("%s: %v, %q", test.name, ok, saw)
		}
	}
}
