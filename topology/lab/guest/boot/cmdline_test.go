package boot

import (
	"net"
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestCommandLine(t *testing.T) {
	full := Parameters{
		Hostname: "node1",
		Links: []Link{
			{Name: "eth0", MAC: net.HardwareAddr{2, 0x42, 10, 4, 94, 23}, Address: netip.MustParsePrefix("10.4.94.23/24")},
			{Name: "eth1", MAC: net.HardwareAddr{2, 0x42, 10, 9, 0, 1}, Address: netip.MustParsePrefix("10.9.0.1/16")},
		},
	}
	for _, test := range []struct {
		name string
		p    Parameters
		want string
	}{
		{"nothing", Parameters{}, ""},
		{"probe", Parameters{Probe: true}, "relapse.probe"},
		{"User Mode Linux", Parameters{UML: true, Hostname: "node1"}, "relapse.uml relapse.hostname=node1"},
		{"full", full, "relapse.hostname=node1 relapse.link=eth0,02:42:0a:04:5e:17,10.4.94.23/24 relapse.link=eth1,02:42:0a:09:00:01,10.9.0.1/16"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := test.p.CommandLine()
			must.Equal(t, "", test.want, text)
			must.Equal(t, "came back", test.p, must.Get(Parse("console=ttyS0 "+text+" quiet\n"))(t))
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, value := range []string{"eth0", "eth0,x,10.0.0.1/24", "eth0,02:42:0a:04:5e:17,10.0.0.1", ",02:42:0a:04:5e:17,10.0.0.1/8"} {
		must.Fail(t, must.Err(Parse("relapse.link="+value)), "relapse.link="+value)
	}
}
