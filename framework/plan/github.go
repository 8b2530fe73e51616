package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// entry is a job of a GitHub Actions matrix. Scenario, label, with and timeout are inputs
// of the action in .github/actions/relapse.
type entry struct {
	Shard    int    `json:"shard"`
	Scenario string `json:"scenario"` // names, with a space between them
	Label    string `json:"label"`
	With     string `json:"with"`
	Timeout  string `json:"timeout"`
	// Minutes is for timeout-minutes. relapse must time out earlier: a cancelled job has no report.
	Minutes int `json:"minutes"`
}

// GitHub writes the shards as the matrix of a job of GitHub Actions: JSON in one line,
// for a line of $GITHUB_OUTPUT and fromJSON.
// Label and with are those flags of relapse run, for all shards; they may be empty.
func GitHub(out io.Writer, shards []Shard, label, with string) error {
	var matrix struct {
		Include []entry `json:"include"`
	}
	for _, s := range shards {
		matrix.Include = append(matrix.Include, entry{
			s.Number, strings.Join(s.Scenarios(), " "), label, with, s.Limit().String(), int(s.Deadline().Minutes()),
		})
	}
	text, err := json.Marshal(matrix)
	if err != nil {
		return fmt.Errorf("encoding the matrix: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}
