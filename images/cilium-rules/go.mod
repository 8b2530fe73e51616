// What the slices of Cilium's agent that write its iptables rules have in common. It is compiled
// against the version of Cilium that the module asks for which holds the main package
// (../cilium-1.8.1 to ../cilium-1.12.0): the requirements below are those of the lowest of them,
// and only the API that all of them share is used.
module github.com/relapse-dev/relapse/images/cilium-rules

go 1.26

require (
	github.com/cilium/cilium v1.8.1
	github.com/relapse-dev/relapse/images/conflist v0.0.0
	github.com/spf13/cobra v1.0.0
	github.com/spf13/pflag v1.0.5
	github.com/spf13/viper v1.6.1
)

replace github.com/relapse-dev/relapse/images/conflist => ../conflist
