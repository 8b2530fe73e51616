package plan

import (
	_ "embed"
	"fmt"
	"io"
	"path"
	"text/template"
)

// Claim is the PersistentVolumeClaim that Jobs write their reports to. The cluster's owner
// creates it.
const Claim = "relapse-reports"

// MergeAnnotation of each Job is the command that merges the reports of all Jobs of a plan,
// in Claim. Without the plan's names, a report that is missing would not be noticed.
const MergeAnnotation = "relapse.dev/merge"

// kills is how often a Job replaces a pod that was killed.
const kills = 2

// Pods says what pods run.
type Pods struct {
	Image string // of relapse, as the cluster pulls it
	// Cache is a PersistentVolumeClaim for what relapse downloads and builds. Without one
	// each pod builds its images anew.
	Cache string
}

var (
	//go:embed job.yaml.tmpl
	jobText     string
	jobTemplate = template.Must(template.New("job").Parse(jobText))
)

// MergeCommand is the command that merges the reports of the Jobs of a plan, in Claim.
func (r Run) MergeCommand(shards []Shard) string {
	command := "relapse merge --replaced --expect=" + Expected(shards)
	for _, s := range shards {
		command += " " + r.folder(s)
	}
	return command
}

func (r Run) folder(s Shard) string { return path.Join(r.Folder, fmt.Sprintf("shard-%d", s.Number)) }

// Jobs writes a Kubernetes Job for each shard, for kubectl create. A shard's reports are in
// the folder shard-N of Run.Folder; MergeCommand merges them.
func Jobs(out io.Writer, shards []Shard, r Run, p Pods) error {
	for i, s := range shards {
		if i > 0 {
			if _, err := io.WriteString(out, "---\n"); err != nil {
				return err
			}
		}
		err := jobTemplate.Execute(out, map[string]any{
			"Shard": s, "Merge": r.MergeCommand(shards), "Kills": kills, "Seconds": int64((1 + kills) * s.Deadline().Seconds()),
			"Args": r.args(s, "/reports/"+r.folder(s)), "Image": p.Image, "Cache": p.Cache,
		})
		if err != nil {
			return fmt.Errorf("writing the job of shard %d: %w", s.Number, err)
		}
	}
	return nil
}
