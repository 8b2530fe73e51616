package verdict

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
)

// FactText is a fact of a scenario as `describe` prints it, with the steps that assert it,
// under the names that a run gives them, or the reason why none does.
func FactText(s framework.Scenario, f framework.Fact) string {
	var text strings.Builder
	mark, not := "+", "only in part: "
	if len(f.By) == 0 {
		mark, not = "-", "not asserted: "
	}
	fmt.Fprintf(&text, "%s %s", mark, f.Says)
	for _, by := range f.By {
		fmt.Fprintf(&text, "\n    %s, %s", by.Variant, stepName(s, by))
	}
	if f.Not != "" {
		fmt.Fprintf(&text, "\n    %s%s", not, f.Not)
	}
	return text.String()
}

func stepName(s framework.Scenario, a framework.Assertion) string {
	for _, v := range s.Variants {
		if v.Name != a.Variant || v.Script == nil {
			continue
		}
		steps := newCase(v, Options{}).Steps()
		if i := slices.IndexFunc(steps, func(step Step) bool { return step.ID == a.Step }); i >= 0 {
			return steps[i].Name
		}
	}
	return a.Step.String()
}
