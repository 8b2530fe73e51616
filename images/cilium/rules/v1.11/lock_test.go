package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/cilium/pkg/option"
)

// The vendor's code calls iptables so that it waits for its lock.
func TestInstallWaitsForLock(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	fake := "#!/bin/sh\necho \"$*\" >>" + calls + "\necho 'iptables v1.8.9 (nf_tables)'\n"
	if err := os.WriteFile(filepath.Join(dir, "iptables"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	option.Config.EnableIPv4, option.Config.IPTablesLockTimeout = true, 7*time.Second

	waitForLock()
	if err := install(t.Context(), "cilium_host"); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	if lines[0] != "--version" || len(lines) < 3 {
		t.Fatalf("iptables was called with %q, want its version and rules", lines)
	}
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, "-w 7 ") {
			t.Errorf("iptables was called with %q, without -w 7", line)
		}
	}
}
