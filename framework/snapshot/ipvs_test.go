package snapshot

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

const ipvsHeader = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
`

func TestParseIPVS(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		name, table string
		want        []VirtualServer
	}{
		{"no IPVS", "", nil},
		{"nothing in it", ipvsHeader, nil},
		{
			// kube-proxy 1.13.0 on Debian's 6.1.
			"recorded", ipvsHeader + `TCP  0A600856:0050 rr  
  -> 0A1E8501:1F90      Masq    1      0          0         
TCP  0A60865D:0050 rr  
TCP  0A600064:0050 rr  
  -> 0A1E8463:1F90      Masq    0      2          1         
  -> 0A1E8409:1F90      Masq    1      0          0         
`, []VirtualServer{
				{Protocol: "TCP", Address: at("10.96.8.86:80"), Scheduler: "rr", Servers: []RealServer{{Address: at("10.30.133.1:8080"), Weight: 1}}},
				{Protocol: "TCP", Address: at("10.96.134.93:80"), Scheduler: "rr"},
				{Protocol: "TCP", Address: at("10.96.0.100:80"), Scheduler: "rr", Servers: []RealServer{
					{Address: at("10.30.132.99:8080"), Active: 2, Inactive: 1}, {Address: at("10.30.132.9:8080"), Weight: 1},
				}},
			},
		},
		{
			"session affinity, IPv6, and a firewall mark", ipvsHeader + `FWM  00000001 wlc 
  -> 0A000001:0050      Route   1      0          0         
UDP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 rr persistent 10800 FFFFFFFF
  -> [fd00:0000:0000:0000:0000:0000:0000:000a]:0035      Masq    1      0          3         
`, []VirtualServer{{
				Protocol: "UDP", Address: at("[fd00::1]:53"), Scheduler: "rr",
				Servers: []RealServer{{Address: at("[fd00::a]:53"), Weight: 1, Inactive: 3}},
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Equal(t, "", c.want, must.Get(ParseIPVS(c.table))(t), byValue)
		})
	}
}

func TestParseIPVSErrors(t *testing.T) {
	for line, want := range map[string]string{
		"TCP 0A600856:0050":                     "no virtual server",
		"TCP 0A600856 rr":                       "has no port",
		"TCP 0A6008:0050 rr":                    "no IPv4 address",
		"TCP 0A600856:50 rr":                    "has no port",
		"  -> 0A1E8501:1F90 Masq 1 0 0":         "no virtual server",
		"TCP [fd00::z]:0050 rr":                 "fd00::z",
		"TCP 0A600856:0050 rr\n  -> x Masq 1 0": "no real server",
	} {
		must.Fail(t, must.Err(ParseIPVS(ipvsHeader+line+"\n")), want, "/proc/net/ip_vs")
	}
}

func FuzzParseIPVS(f *testing.F) {
	f.Add(ipvsHeader + "TCP  0A600856:0050 rr  \n  -> 0A1E8501:1F90      Masq    1      0          0\n")
	f.Add(ipvsHeader + "FWM  00000001 wlc\n")
	f.Fuzz(func(t *testing.T, table string) {
		servers, err := ParseIPVS(table)
		must.Equal(t, "servers with an error", false, err != nil && servers != nil)
		must.Equal(t, "without an address", nil, each.Where(servers, func(s VirtualServer) bool { return !s.Address.IsValid() }))
	})
}
