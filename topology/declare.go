package topology

import "net/netip"

// NewNetwork declares a network. It panics if the subnet is no prefix.
func NewNetwork(name, subnet string) Network {
	return Network{Name: name, Subnet: netip.MustParsePrefix(subnet)}
}

// At is a link to the network. It panics if the address is none.
func (n Network) At(address string) Link {
	return Link{Network: n.Name, Address: netip.MustParseAddr(address)}
}
