package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var master2 = Network{Name: "cilium", PodCIDR: netip.MustParsePrefix("10.5.115.0/24"), MTU: 1500}

func TestRender(t *testing.T) {
	const want = `{"cniVersion":"1.0.0","name":"cilium","plugins":[{"type":"ptp","mtu":1500,"ipMasq":false,` +
		`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.5.115.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`
	got, err := Render(master2)
	var compact bytes.Buffer
	if err = errors.Join(err, json.Compact(&compact, got)); err != nil || compact.String() != want {
		t.Errorf("%v; got:\n%s\nwant:\n%s", err, &compact, want)
	}
}

func TestWrite(t *testing.T) {
	moved := master2
	moved.PodCIDR = netip.MustParsePrefix("10.5.114.0/24")
	long := time.Unix(1, 0)
	for _, test := range []struct {
		name    string
		before  *Network
		changed bool
	}{
		{"no file yet", nil, true},
		{"same range", &master2, false},
		{"other range", &moved, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "net.d", "05-cilium.conflist")
			if test.before != nil {
				_, err := Write(path, *test.before)
				if err = errors.Join(err, os.Chtimes(path, long, long)); err != nil {
					t.Fatal(err)
				}
			}
			changed, err := Write(path, master2)
			if err != nil || changed != test.changed {
				t.Fatalf("changed = %t, want %t; %v", changed, test.changed, err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if touched := !info.ModTime().Equal(long); touched != test.changed {
				t.Errorf("file touched: %t, want %t", touched, test.changed)
			}
			got, _ := os.ReadFile(path)
			if want, _ := Render(master2); string(got) != string(want) {
				t.Errorf("file says:\n%s", got)
			}
			if rest, _ := filepath.Glob(filepath.Dir(path) + "/*"); len(rest) != 1 {
				t.Errorf("left in the folder: %v", rest)
			}
		})
	}
}
