package bounding

import (
	"testing"

	"github.com/moby/sys/capability"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestMissing(t *testing.T) {
	tests := map[string]struct {
		status string
		last   capability.Cap
		want   []string
	}{
		"everything granted": {
			status: "CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\n",
			last:   capability.CAP_CHECKPOINT_RESTORE,
		},
		"one missing": {
			status: "CapEff:\t000001fffeffffff\nCapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000000\n",
			last:   capability.CAP_CHECKPOINT_RESTORE,
			want:   []string{"CAP_SYS_RESOURCE"},
		},
		"effective set is not the bounding set": {
			status: "CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n",
			last:   capability.CAP_CHECKPOINT_RESTORE,
		},
		"old kernel knows no newer capabilities": {
			status: "CapBnd:\t0000003fffffffff\n",
			last:   capability.CAP_AUDIT_READ,
		},
		"inside an unprivileged container": {
			status: "CapBnd:\t00000000a80425fb\n",
			last:   capability.CAP_SYS_ADMIN,
			want: []string{
				"CAP_DAC_READ_SEARCH", "CAP_LINUX_IMMUTABLE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
				"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_PTRACE",
				"CAP_SYS_PACCT", "CAP_SYS_ADMIN",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			set := must.Get(Parse(test.status))(t)
			must.Equal(t, "missing", test.want, set.Missing(test.last))
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := map[string]string{
		"no line":   "Name:\tdockerd\nCapEff:\t000001fffeffffff\n",
		"no number": "CapBnd:\tall of them\n",
		"nothing":   "",
	}
	for name, status := range tests {
		t.Run(name, func(t *testing.T) {
			if set, err := Parse(status); err == nil {
				t.Errorf("Parse(%q) = %x, want an error", status, set)
			}
		})
	}
}
