package detect

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// masqueraded is what the layers say after the upgrade to Cilium 1.11.1: the
// nat table is the one that it has written.
func masqueraded(t *testing.T) snapshot.Snapshot {
	t.Helper()
	saved := must.Read(t, "../snapshot/testdata/cilium-1.11.1-nat.iptables-save")
	rules := must.Get(snapshot.ParseRules(string(saved), snapshot.NATTable))(t)
	var s snapshot.Snapshot
	s.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.Pods.Read, s.Nodes.Read = true, true
	s.Nodes.Items = []snapshot.Node{{Name: "node2", InternalIPs: []netip.Addr{netip.MustParseAddr("10.4.94.31")}}}
	s.Pods.Items = []snapshot.Pod{
		{Namespace: "default", Name: "app", Node: "node2", IP: netip.MustParseAddr("10.20.30.35")},
		{Namespace: "default", Name: "other", Node: "node1", IP: netip.MustParseAddr("10.20.30.3")},
	}
	s.Routers = []snapshot.Router{{Name: "tor", Routes: snapshot.List[snapshot.Route]{Read: true, Items: []snapshot.Route{
		{Prefix: netip.MustParsePrefix("0.0.0.0/0"), NextHops: []snapshot.NextHop{{Address: netip.MustParseAddr("10.4.36.1")}}},
		{Prefix: netip.MustParsePrefix("10.20.30.32/27"), NextHops: []snapshot.NextHop{{Address: netip.MustParseAddr("10.4.94.31")}}},
	}}}}
	s.NAT = []snapshot.NodeNAT{{Node: "node2", Rules: snapshot.List[snapshot.Rule]{Read: true, Items: rules}, Flows: snapshot.List[snapshot.Flow]{Read: true, Items: []snapshot.Flow{
		flow("tcp", "10.20.30.35:40312", "10.4.40.10:3306", "10.4.94.31:40312"),
		flow("udp", "10.20.30.35:7008", "10.20.30.3:7007", "10.20.30.35:7008"),
	}}}}
	return s
}

func flow(protocol, from, to, seen string) snapshot.Flow {
	return snapshot.Flow{
		Protocol: protocol, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to),
		SeenAs: netip.MustParseAddrPort(seen), Expires: 120 * time.Second,
	}
}

func noRules(s *snapshot.Snapshot)  { s.NAT[0].Rules.Items = s.NAT[0].Rules.Items[:3] }
func noFlows(s *snapshot.Snapshot)  { s.NAT[0].Flows.Items = nil }
func noRoutes(s *snapshot.Snapshot) { s.Routers[0].Routes.Items = s.Routers[0].Routes.Items[:1] }

// byProgram makes the flow one that the node's connection tracking does not
// translate, with a BPF program on its way out.
func byProgram(s *snapshot.Snapshot) {
	s.NAT[0].Flows.Items[0].SeenAs, s.NAT[0].Flows.Items[0].Established = s.NAT[0].Flows.Items[0].Source, true
	s.NAT[0].Programs.Read = true
	s.NAT[0].Programs.Items = []snapshot.Program{{Device: "eth0", Name: "bpf_host.o:[to-netdev]"}}
}

func dbSees(s *snapshot.Snapshot) {
	s.Outside = []snapshot.HostSockets{{Host: "db", Sockets: snapshot.List[snapshot.Socket]{Read: true, Items: []snapshot.Socket{
		{Local: netip.MustParseAddrPort("10.4.40.10:3306"), Remote: netip.MustParseAddrPort("10.4.94.31:40312")},
	}}}}
}

func natOutgoing() []snapshot.Rule {
	return []snapshot.Rule{
		{Chain: "POSTROUTING", Target: "cali-POSTROUTING", Comment: "cali:O3lYWMrLQYEMJtB5", Text: "jump"},
		{Chain: "cali-POSTROUTING", Target: "cali-nat-outgoing", Comment: "cali:Z-c7XtVd2Bq7s_hA", Text: "jump"},
		{Chain: "cali-nat-outgoing", Target: "MASQUERADE", Conditional: true, Comment: "cali:flqWnvo8yq4ULQLa", Text: "masquerade what leaves the pools"},
	}
}

// kubeProxy are the rules by which kube-proxy masquerades packets with its mark.
func kubeProxy() []snapshot.Rule {
	return []snapshot.Rule{
		{Chain: "POSTROUTING", Target: "KUBE-POSTROUTING", Text: "jump"},
		{Chain: "KUBE-POSTROUTING", Target: "RETURN", Conditional: true, Unmarked: true, Text: "return"},
		{Chain: "KUBE-POSTROUTING", Target: "MARK", Text: "unmark"},
		{Chain: "KUBE-POSTROUTING", Target: "MASQUERADE", Comment: "kubernetes service traffic requiring SNAT", Text: "masquerade"},
	}
}

// answeredBy makes the flow one to a Service that another address answers for.
func answeredBy(address string) func(*snapshot.Snapshot) {
	return func(s *snapshot.Snapshot) {
		f := &s.NAT[0].Flows.Items[0]
		f.Redirected, f.AnsweredBy = true, netip.MustParseAddrPort(address)
	}
}

func TestSNAT(t *testing.T) {
	const rule = `-A CILIUM_POST_nat -s 10.20.30.32/27 ! -d 10.20.30.0/24 ! -o cilium_+ -m comment --comment \"cilium masquerade non-cluster\" -j MASQUERADE`
	type change = func(*snapshot.Snapshot)
	rules := func(all ...snapshot.Rule) change { return func(s *snapshot.Snapshot) { s.NAT[0].Rules.Items = all } }
	established := func(value bool) change {
		return func(s *snapshot.Snapshot) { s.NAT[0].Flows.Items[0].Established = value }
	}
	db := netip.MustParseAddrPort("10.4.40.10:3306")
	sees := func(remote string) change {
		return func(s *snapshot.Snapshot) {
			s.Outside[0].Sockets.Items = []snapshot.Socket{{Local: db, Remote: netip.MustParseAddrPort(remote)}}
		}
	}
	to := func(chain, target string) snapshot.Rule {
		return snapshot.Rule{Chain: chain, Target: target, Text: target}
	}
	hidden := func(state State, object string) []brief { return []brief{{HiddenSource, state, object, 1}} }
	const pods = "10.20.30.32/27"
	for _, tt := range []struct {
		name   string
		change change
		want   []brief
		says   string
	}{
		{"hidden, and the server sees it", dbSees, hidden(Active, pods),
			`db (10.4.40.10:3306) sees 10.4.94.31, which is pod default/app (10.20.30.35): node2 translates it, by the rule "` + rule + `", although tor has a route to them (10.20.30.32/27).`},
		{"hidden, and nobody outside was asked", func(*snapshot.Snapshot) {}, hidden(Active, pods),
			`10.4.40.10:3306 receives tcp packets from 10.4.94.31, which is pod default/app`},
		{"the rule waits", noFlows, hidden(Latent, pods),
			`node2 will translate the addresses of 1 pod to its own, by the rule "` + rule + `", although tor has a route`},
		{"no rule, no flow", changes(noRules, noFlows), nil, ""},
		{"to a Service's endpoint outside", answeredBy("10.4.40.11:3306"), hidden(Active, pods), ""},
		{"to a Service, and back to the pod itself", answeredBy("10.20.30.35:3306"), hidden(Latent, pods), ""},
		{"a connection that is over keeps its entry for a while", noRules, nil, ""},
		{"a connection from before goes on", changes(noRules, established(true)), []brief{{StaleTranslation, Active, "10.20.30.35", 1}},
			"10.4.40.10:3306 receives tcp packets from 10.4.94.31, which is pod default/app (10.20.30.35), although no rule of node2 translates it any more: " +
				"connection tracking keeps the translation of 1 flow for as long as packets flow (conntrack -D -s 10.20.30.35 ends it)."},
		{"a BPF program hides it, and the server sees it", changes(noRules, byProgram, dbSees), hidden(Active, pods),
			`db (10.4.40.10:3306) sees 10.4.94.31, which is pod default/app (10.20.30.35): no rule of node2 translates it, ` +
				`and after the rules it passes BPF program bpf_host.o:[to-netdev] on egress of eth0, although tor has a route to it (10.20.30.32/27).`},
		{"the server has seen the node at that port before, and there is no program",
			changes(noRules, byProgram, dbSees, func(s *snapshot.Snapshot) { s.NAT[0].Programs.Items = nil }), nil, ""},
		{"a BPF program, and nobody outside was asked", changes(noRules, byProgram), nil, ""},
		{"a BPF program that hides nothing", changes(noRules, byProgram, dbSees, sees("10.20.30.35:40312")), nil, ""},
		{"the server has seen the node at that port before, and sees the pod now", changes(noRules, byProgram, dbSees, func(s *snapshot.Snapshot) {
			before := s.Outside[0].Sockets.Items
			sees("10.20.30.35:40312")(s)
			s.Outside[0].Sockets.Items = append(before, s.Outside[0].Sockets.Items...)
		}), nil, ""},
		{"the server sees another client at that port", changes(noRules, byProgram, dbSees, sees("10.4.94.99:40312")), nil, ""},
		{"a BPF program, and a connection that may be over", changes(noRules, byProgram, dbSees, established(false)), nil, ""},
		{"pods that nobody routes must be translated", noRoutes, nil, ""},
		{"the pods could not be read", func(s *snapshot.Snapshot) { s.Pods.Read = false }, nil, ""},
		{"the rules could not be read", func(s *snapshot.Snapshot) { s.NAT[0].Rules.Read = false }, nil, ""},
		{"the pod is another node's", func(s *snapshot.Snapshot) { s.Pods.Items[0].Node = "node1" }, nil, ""},
		{"a rule that no packet comes to",
			changes(noFlows, func(s *snapshot.Snapshot) { s.NAT[0].Rules.Items = s.NAT[0].Rules.Items[3:] }), nil, ""},
		{"a rule that looks at a set", rules(to("POSTROUTING", "cali-POSTROUTING"),
			snapshot.Rule{Chain: "cali-POSTROUTING", Target: "MASQUERADE", Conditional: true, Comment: "nat outgoing", Text: "masquerade"}),
			hidden(Active, "rule nat outgoing"), `node2 translates it, by the rule "masquerade"`},
		{"Calico's natOutgoing, before kube-proxy's rule for packets with its mark", rules(append(natOutgoing(), kubeProxy()...)...),
			hidden(Active, "rule in cali-nat-outgoing"), `node2 translates it, by the rule "masquerade what leaves the pools"`},
		{"kube-proxy's rule is not for a flow that goes to no Service", rules(kubeProxy()...), nil, ""},
		{"kube-proxy's rule, and a flow to a Service", changes(rules(kubeProxy()...),
			func(s *snapshot.Snapshot) { s.NAT[0].Flows.Items[0].Redirected = true }),
			hidden(Active, "rule kubernetes service traffic requiring SNAT"), ""},
		{"a rule before it lets the flow pass", changes(established(true), func(s *snapshot.Snapshot) {
			s.NAT[0].Rules.Items = append([]snapshot.Rule{to("POSTROUTING", "ACCEPT")}, s.NAT[0].Rules.Items...)
		}), append(hidden(Latent, pods), brief{StaleTranslation, Active, "10.20.30.35", 1}), ""},
		{"SNAT to another address is not it", rules(
			snapshot.Rule{Chain: "POSTROUTING", Target: "SNAT", To: netip.MustParseAddr("10.4.94.99"), Text: "other"},
			snapshot.Rule{Chain: "POSTROUTING", Target: "SNAT", To: netip.MustParseAddr("10.4.94.31"), Comment: "this", Text: "this"}),
			hidden(Active, "rule this"), ""},
		{"chains that call each other", rules(to("POSTROUTING", "A"), to("A", "B"), to("B", "A")), nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := masqueraded(t)
			tt.change(&s)
			compareBriefs(t, detected(t, SNAT{}, []snapshot.Snapshot{s}), tt.want, tt.says, strings.Contains)
		})
	}
}

// Where nobody has declared that pods' addresses are to be seen, what objects ask for is a hint,
// and the rest is found as in a lab.
func TestSNATWanted(t *testing.T) {
	calico := func(natOutgoingOf bool, more ...snapshot.CalicoPool) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			s.NAT[0].Rules.Items = natOutgoing()
			s.CalicoPools.Read = true
			s.CalicoPools.Items = append(more, snapshot.CalicoPool{Name: "default-ipv4-ippool", CIDR: netip.MustParsePrefix("10.20.0.0/16"), NATOutgoing: natOutgoingOf})
		}
	}
	egress := func(target string) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			s.NAT[0].Rules.Items = []snapshot.Rule{{Chain: "POSTROUTING", Target: "SNAT", To: netip.MustParseAddr(target), Comment: "egress", Text: "snat"}}
			s.NAT[0].Flows.Items[0].SeenAs = netip.AddrPortFrom(netip.MustParseAddr(target), 40312)
		}
	}
	// card is a second card of the node, by which its packets leave.
	card := func(target string) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			a := netip.MustParseAddr("10.8.0.31")
			s.NAT[0].Rules.Items = []snapshot.Rule{{Chain: "POSTROUTING", Target: target, Comment: "egress", Text: "egress"}}
			if target == "SNAT" {
				s.NAT[0].Rules.Items[0].To = a
			}
			s.NAT[0].Flows.Items[0].SeenAs = netip.AddrPortFrom(a, 40312)
			s.NodeNetworks = []snapshot.NodeNetwork{{Node: "node2", Interfaces: snapshot.List[snapshot.Interface]{Read: true, Items: []snapshot.Interface{
				{Name: "bond1", Addresses: []netip.Prefix{netip.MustParsePrefix("10.8.0.31/24")}},
			}}}}
		}
	}
	summary := func(more ...snapshot.Route) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			s.Routers[0].Routes.Items = append(more, snapshot.Route{Prefix: netip.MustParsePrefix("10.0.0.0/8"), NextHops: []snapshot.NextHop{{Address: netip.MustParseAddr("10.4.36.1")}}})
		}
	}
	kubeRouterEgress := func(s *snapshot.Snapshot) {
		rules, err := snapshot.ParseRules("*nat\n-A POSTROUTING -m set --match-set kube-router-pod-subnets src -m set ! --match-set kube-router-pod-subnets dst -m set ! --match-set kube-router-node-ips dst -j MASQUERADE\n", snapshot.NATTable)
		must.NoError(t, err)
		s.NAT[0].Rules.Items = rules
	}
	ciliumNodes := snapshot.List[snapshot.CiliumNode]{Read: true, Items: []snapshot.CiliumNode{{Name: "node2"}}}
	config := func(keys ...string) func(*snapshot.Snapshot) {
		data := map[string]string{"cluster-name": "default"}
		for i := 0; i < len(keys); i += 2 {
			data[keys[i]] = keys[i+1]
		}
		return func(s *snapshot.Snapshot) {
			s.CiliumNodes = ciliumNodes
			s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Read: true, Items: []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: data}}}
		}
	}
	for _, test := range []struct {
		name    string
		peering Peering
		change  func(*snapshot.Snapshot)
		want    []brief
		says    string
	}{
		{"natOutgoing", Observed, calico(true), []brief{{HiddenSource, Hint, "rule in cali-nat-outgoing", 1}}, "; IPPool default-ipv4-ippool asks for it (natOutgoing)."},
		{"natOutgoing in a lab", Declared, calico(true), []brief{{HiddenSource, Active, "rule in cali-nat-outgoing", 1}}, "has a route to them (10.20.30.32/27)."},
		{"no natOutgoing, and a rule of it", Observed, calico(false), []brief{{HiddenSource, Active, "rule in cali-nat-outgoing", 1}}, "has a route to them (10.20.30.32/27)."},
		{"natOutgoing, and a destination in a pool", Observed, calico(true, snapshot.CalicoPool{Name: "db", CIDR: netip.MustParsePrefix("10.4.40.0/24")}),
			[]brief{{HiddenSource, Active, "rule in cali-nat-outgoing", 1}}, "has a route to them (10.20.30.32/27)."},
		{"an egress gateway's address", Observed, egress("10.4.94.99"), []brief{{HiddenSource, Hint, "rule egress", 1}}, "; 10.4.94.99 is no address of node2, as that of an egress gateway."},
		{"the node's own address", Observed, egress("10.4.94.31"), []brief{{HiddenSource, Active, "rule egress", 1}}, "has a route to them (10.20.30.32/27)."},
		{"the address of another card", Observed, card("MASQUERADE"), []brief{{HiddenSource, Active, "rule egress", 1}}, "has a route to them (10.20.30.32/27)."},
		{"an egress gateway's address on a card of the node", Observed, card("SNAT"), []brief{{HiddenSource, Hint, "rule egress", 1}}, "; 10.8.0.31 is no address of node2, as that of an egress gateway."},
		{"no rule that was read", Observed, func(s *snapshot.Snapshot) {
			s.NAT[0].Rules.Items, s.NAT[0].Flows.Items[0].Established = nil, true
		}, []brief{{StaleTranslation, Latent, "10.20.30.35", 1}}, "for as long as packets flow."},
		{"a summary of the site alone", Observed, summary(), nil, ""},
		{"an aggregate alone, of a router that is said to get the pod ranges", Observed, func(s *snapshot.Snapshot) {
			summary()(s)
			s.Routers[0].Pods = true
		}, []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.0.0.0/8)."},
		{"the same, and a part of the node's range by way of another router", Observed, func(s *snapshot.Snapshot) {
			summary(snapshot.Route{Prefix: netip.MustParsePrefix("10.20.30.32/28"), NextHops: []snapshot.NextHop{{Address: netip.MustParseAddr("10.4.36.1")}}})(s)
			s.Nodes.Items[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.20.30.32/27")}
		}, []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/28)."},
		{"kube-router's own rule", Observed, kubeRouterEgress, []brief{{HiddenSource, Hint, "rule ", 1}}, "; kube-router asks for it (--enable-pod-egress)."},
		{"an egress gateway without a rule", Observed, func(s *snapshot.Snapshot) {
			egress("10.4.94.99")(s)
			s.NAT[0].Rules.Items, s.NAT[0].Flows.Items[0].Established = nil, true
		}, []brief{{StaleTranslation, Hint, "10.20.30.35", 1}}, "; 10.4.94.99 is no address of node2, as that of an egress gateway."},
		{"Cilium's rule", Observed, config("enable-ipv4-masquerade", "true", "ipv4-native-routing-cidr", "10.20.30.0/24"), []brief{{HiddenSource, Hint, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade)."},
		{"Cilium's rule in a lab", Declared, config("enable-ipv4-masquerade", "true"), []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/27)."},
		{"Cilium's rule, by default", Observed, config("tunnel", "disabled"), []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/27)."},
		{"Cilium's rule, by default with a tunnel", Observed, config("routing-mode", "tunnel"), []brief{{HiddenSource, Hint, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade)."},
		{"Cilium's rule, and the chart's default with native routing", Observed, config("enable-ipv4-masquerade", "true", "routing-mode", "native", "ipv4-native-routing-cidr", "10.20.30.0/24"), []brief{{HiddenSource, Latent, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade), as the chart does by default, and routing is native."},
		{"the same by the older key, towards the internet", Observed, func(s *snapshot.Snapshot) {
			config("enable-ipv4-masquerade", "true", "tunnel", "disabled", "native-routing-cidr", "10.20.30.0/24")(s)
			s.NAT[0].Flows.Items[0].Destination = netip.MustParseAddrPort("192.0.2.10:3306")
		}, []brief{{HiddenSource, Hint, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade)."},
		{"the same, and ip-masq-agent is asked for", Observed, config("enable-ipv4-masquerade", "true", "routing-mode", "native", "enable-ip-masq-agent", "true"), []brief{{HiddenSource, Hint, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade)."},
		{"the same before the first flow, and there is nothing else in the site", Observed, func(s *snapshot.Snapshot) {
			config("enable-ipv4-masquerade", "true", "routing-mode", "native", "ipv4-native-routing-cidr", "10.20.30.0/24")(s)
			noFlows(s)
		}, []brief{{HiddenSource, Hint, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade)."},
		{"the same before the first flow, and there is", Observed, func(s *snapshot.Snapshot) {
			config("enable-ipv4-masquerade", "true", "routing-mode", "native", "ipv4-native-routing-cidr", "10.20.30.0/24")(s)
			noFlows(s)
			s.Routers[0].Routes.Items = append(s.Routers[0].Routes.Items, snapshot.Route{Prefix: netip.MustParsePrefix("10.4.40.0/24")})
		}, []brief{{HiddenSource, Latent, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade), as the chart does by default, and routing is native."},
		{"Cilium's rule, and the key of before denies it", Observed, config("enable-ipv4-masquerade", "true", "masquerade", "false"), []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/27)."},
		{"Cilium's rule, and a destination that is routed natively", Observed, config("enable-ipv4-masquerade", "true", "native-routing-cidr", "10.4.0.0/16"), []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/27)."},
		{"Cilium's rule before the first flow", Observed, func(s *snapshot.Snapshot) {
			config("enable-ipv4-masquerade", "true", "ipv4-native-routing-cidr", "10.20.30.0/24")(s)
			noFlows(s)
		}, []brief{{HiddenSource, Hint, "10.20.30.32/27", 1}}, "; ConfigMap kube-system/cilium-config asks for it (enable-ipv4-masquerade)."},
		{"Cilium's rule does not spare what is routed natively, before the first flow", Observed, func(s *snapshot.Snapshot) {
			config("enable-ipv4-masquerade", "true", "ipv4-native-routing-cidr", "10.0.0.0/8")(s)
			noFlows(s)
		}, []brief{{HiddenSource, Latent, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/27)."},
		{"Cilium's rule, and its ConfigMap was not read", Observed, func(s *snapshot.Snapshot) { s.CiliumNodes = ciliumNodes }, nil, ""},
		{"CiliumNodes were not read", Observed, func(s *snapshot.Snapshot) { s.CiliumNodes.Read = false }, nil, ""},
		{"another program's rule", Observed, func(*snapshot.Snapshot) {}, []brief{{HiddenSource, Active, "10.20.30.32/27", 1}}, "has a route to them (10.20.30.32/27)."},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := masqueraded(t)
			s.CiliumNodes.Read = true
			test.change(&s)
			compareBriefs(t, detected(t, SNAT{Peering: test.peering}, []snapshot.Snapshot{s}), test.want, test.says, strings.HasSuffix)
		})
	}
}

// The kernel does not know when a UDP flow is over: its entry expires.
func TestSNATLooksWhetherAFlowGoesOn(t *testing.T) {
	const seconds = time.Second
	for _, tt := range []struct {
		name           string
		passed, before time.Duration // before: what the entry had then, of 120 s now
		want           int
	}{
		{"it went on", 5 * seconds, 120 * seconds, 1},
		{"it went on, and packets are rare", 5 * seconds, 122 * seconds, 1},
		{"silent", 5 * seconds, 125 * seconds, 0},
		{"silent, and the seconds were cut off", 5 * seconds, 124 * seconds, 0},
		{"not long enough to know", 1 * seconds, 121 * seconds, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := masqueraded(t)
			noRules(&now)
			now.NAT[0].Flows.Items = []snapshot.Flow{flow("udp", "10.20.30.35:7008", "10.4.40.10:7007", "10.4.94.31:7008")}
			then := masqueraded(t)
			then.Time = now.Time.Add(-tt.passed)
			then.NAT[0].Flows.Items = []snapshot.Flow{now.NAT[0].Flows.Items[0]}
			then.NAT[0].Flows.Items[0].Expires = tt.before
			must.Equal(t, "found", tt.want, len(detected(t, SNAT{}, []snapshot.Snapshot{then, now})))
		})
	}
}

// A connection that is over stays known for minutes, to the node and to the
// server: the address that it had says nothing about the flow of today.
func TestSNATLooksWhetherAConnectionIsNew(t *testing.T) {
	for _, tt := range []struct {
		name   string
		passed time.Duration
		change func(then *snapshot.Snapshot)
		want   int
	}{
		{"it is new", 5 * time.Second, noFlows, 1},
		{"it was there", 5 * time.Second, func(*snapshot.Snapshot) {}, 0},
		{"it is new, and the server's is an old one from the node", 5 * time.Second, func(then *snapshot.Snapshot) { noFlows(then); dbSees(then) }, 0},
		{"not long enough to know", time.Second, noFlows, 0},
		{"nobody looked then", 5 * time.Second, func(then *snapshot.Snapshot) { then.NAT[0].Flows.Read = false }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := masqueraded(t)
			noRules(&now)
			byProgram(&now)
			dbSees(&now)
			now.NAT[0].Flows.Items[0].Established = false
			then := masqueraded(t)
			byProgram(&then)
			then.NAT[0].Flows.Items[0].Established = false
			then.Time = now.Time.Add(-tt.passed)
			tt.change(&then)
			must.Equal(t, "found", tt.want, len(detected(t, SNAT{}, []snapshot.Snapshot{then, now})))
		})
	}
}
