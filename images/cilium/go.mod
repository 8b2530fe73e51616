// What the slices of Cilium's agent have in common. It is compiled against the
// version of Cilium that the module asks for which holds the main package
// (../cilium-1.11.6, ../cilium-1.12.0): the requirement below is the lowest of
// them, and only the API that all of them share is used.
module github.com/relapse-dev/relapse/images/cilium

go 1.26

require (
	github.com/cilium/cilium v1.11.6
	github.com/relapse-dev/relapse/images/conflist v0.0.0
	github.com/spf13/cobra v1.2.1
	github.com/vishvananda/netlink v1.1.1-0.20220125195016-0639e7e787ba
)

replace github.com/relapse-dev/relapse/images/conflist => ../conflist
