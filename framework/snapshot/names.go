package snapshot

// Names are the names in a snapshot that tell of which cluster it is: relapse archive
// --redact replaces them. Addresses are none of them, as they are found by their form.
type Names struct {
	Nodes, Pods, Namespaces map[string]bool
}

// Names returns those of all sources.
func (s Snapshot) Names() Names {
	n := Names{Nodes: map[string]bool{}, Pods: map[string]bool{}, Namespaces: map[string]bool{}}
	for _, k := range kinds {
		k.names(s, &n)
	}
	return n
}

// named is what each item of a source implements: it adds its names. Without it the
// source does not compile; one that holds none says so by a method that does nothing.
type named interface{ names(to *Names) }

func namesOf[T named](items func(Snapshot) []T) func(Snapshot, *Names) {
	return func(s Snapshot, to *Names) {
		for _, item := range items(s) {
			item.names(to)
		}
	}
}
