package mariadb

import (
	"net/netip"
	"strings"
	"testing"
)

func TestDenied(t *testing.T) {
	const log = `2026-11-20 13:00:00 3 [Note] mariadbd: ready for connections.
2026-11-20 13:00:01 4 [Warning] Access denied for user 'app'@'10.20.28.12' (using password: YES)
2026-11-20 13:00:02 5 [Warning] Access denied for user 'root'@'10.20.28.12' (using password: NO)
2026-11-20 13:00:03 6 [Warning] Access denied for user 'app'@'10.20.28.120' (using password: YES)
`
	got := Denied(log, "app", netip.MustParseAddr("10.20.28.12"))
	if len(got) != 1 || !strings.HasPrefix(got[0], "2026-11-20 13:00:01") {
		t.Errorf("of one user at one address: %q", got)
	}
	if got := Denied(log, "", netip.Addr{}); len(got) != 3 {
		t.Errorf("of anybody: %q", got)
	}
}
