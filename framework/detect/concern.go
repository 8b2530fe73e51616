package detect

import (
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Concerns reports whether a statement is about the object of a finding, or a rule of its owner
// that names the object; if the object is a program, also whether it is about the node that the
// program runs on.
func (f Finding) Concerns(st snapshot.Statement) bool {
	object := f.Object.String()
	_, prefix := f.Object.Prefix()
	switch {
	case st.Object == object:
		return true
	case prefix:
		return st.Rule && st.Object == f.Owner && strings.Contains(st.Says, object)
	}
	return st.Object == f.Announcer && !st.Rule && !strings.Contains(object, "/") // a container has the node of its pod
}
