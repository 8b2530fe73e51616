package detect

import "net/netip"

// Object is a prefix, or something with a name, such as a node or a container of a workload.
// It is comparable, and encoded as text. The zero Object is none.
type Object struct {
	prefix netip.Prefix
	name   string
}

// Prefix is an object that is a prefix.
func Prefix(p netip.Prefix) Object { return Object{prefix: p} }

// Named is an object that has a name.
func Named(name string) Object { return Object{name: name} }

// Prefix returns the prefix that the object is, if it is one.
func (o Object) Prefix() (p netip.Prefix, ok bool) { return o.prefix, o.prefix.IsValid() }

func (o Object) String() string {
	if o.prefix.IsValid() {
		return o.prefix.String()
	}
	return o.name
}

func (o Object) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Text in the form of a prefix becomes a
// prefix: no other object has such a name.
func (o *Object) UnmarshalText(text []byte) error {
	p, err := netip.ParsePrefix(string(text))
	if err != nil {
		*o = Named(string(text))
		return nil
	}
	*o = Prefix(p)
	return nil
}
