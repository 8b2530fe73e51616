package portable

import "testing"

// What git archive writes into commit.txt names the commit, and the version as go build would.
func TestArchived(t *testing.T) {
	const hash = "25c6bb8570f8922f78f4974c527fd7e2507d61cd"
	known := Commit{Hash: hash, Time: "2026-11-26T02:22:31Z"}
	for name, test := range map[string]struct {
		text    string
		commit  Commit
		version string
	}{
		"a checkout":               {"$Format:%H %ct %(describe:tags=true,match=v*)$\n", Commit{}, ""},
		"a tree, not a commit":     {" \n", Commit{}, ""},
		"without a tag":            {hash + " 1795659751 \n", known, "v0.0.0-20261126022231-25c6bb8570f8"},
		"a tag":                    {hash + " 1795659751 v1.4.0\n", known, "v1.4.0"},
		"a tag before":             {hash + " 1795659751 v1.4.0-12-g25c6bb8\n", known, "v0.0.0-20261126022231-25c6bb8570f8"},
		"a tag of a candidate":     {hash + " 1795659751 v1.4.0-rc.1\n", known, "v1.4.0-rc.1"},
		"a tag that is no version": {hash + " 1795659751 vintage\n", known, "v0.0.0-20261126022231-25c6bb8570f8"},
	} {
		t.Run(name, func(t *testing.T) {
			if c, version := archived(test.text); c != test.commit || version != test.version {
				t.Errorf("%+v, %q; want %+v, %q", c, version, test.commit, test.version)
			}
		})
	}
}
