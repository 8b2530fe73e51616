package framework

import "testing"

func TestExpected(t *testing.T) {
	for role, want := range map[Role]Verdict{Affected: Reproduced, Fixed: Prevented, Workaround: Prevented} {
		if got := (Variant{Role: role}).Expected(); got != want {
			t.Errorf("%s: %s, want %s", role, got, want)
		}
	}
}
