package portable

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// Commit is a commit that a program was built from.
type Commit struct {
	Hash, Time string
	// modified is true if files differed from the commit.
	modified bool
}

func (c Commit) String() string {
	text := c.Hash + " of " + c.Time
	if c.modified {
		text += ", with changes"
	}
	return text
}

// PrintVersion prints the version, the commit and the platform of this program.
func PrintVersion(out io.Writer) {
	built, ok := BuiltFrom()
	fmt.Fprintf(out, "version  %s\n", ThisVersion())
	if ok {
		fmt.Fprintf(out, "commit   %s\n", built)
	} else {
		fmt.Fprintln(out, "commit   not known: make build does not ask git; make dist does")
	}
	fmt.Fprintf(out, "go       %s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// BuiltFrom returns the commit of this program, from go build, or from git archive if that wrote the source.
func BuiltFrom() (c Commit, ok bool) {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return c, false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			c.Hash = s.Value
		case "vcs.time":
			c.Time = s.Value
		case "vcs.modified":
			c.modified = s.Value == "true"
		}
	}
	if c.Hash == "" {
		c, _ = archived(archivedCommit)
	}
	return c, c.Hash != ""
}

// archivedCommit is a commit's hash, the seconds of its time and its tag, as git archive
// writes them into this file (attribute export-subst). In a checkout it is a placeholder.
//
//go:embed commit.txt
var archivedCommit string

// afterTag is the suffix that git describe appends if the tag is on an earlier commit.
var afterTag = regexp.MustCompile(`-[0-9]+-g[0-9a-f]+$`)

// archived reads the text that git archive has written. The version is the tag of the commit, or else a pseudo-version,
// as by go build. Both results are empty for the placeholder.
func archived(text string) (c Commit, version string) {
	fields := strings.Fields(text)
	if len(fields) < 2 || len(fields[0]) < 12 {
		return Commit{}, ""
	}
	seconds, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return Commit{}, ""
	}
	at := time.Unix(seconds, 0).UTC()
	c = Commit{Hash: fields[0], Time: at.Format(time.RFC3339)}
	if len(fields) == 3 && semver.IsValid(fields[2]) && !afterTag.MatchString(fields[2]) {
		return c, fields[2]
	}
	return c, module.PseudoVersion("v0", "", at, c.Hash[:12])
}

// ThisProgram identifies this program for reports, by its version and the digest of its file.
func ThisProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	return fmt.Sprintf("%s sha256:%s", ThisVersion(), hex.EncodeToString(sum.Sum(nil))[:16]), nil
}

// ThisVersion is the version of this program; "(devel)" if it is not known.
func ThisVersion() string {
	const unknown = "(devel)" // as go build has it
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != unknown {
		return info.Main.Version
	}
	_, version := archived(archivedCommit)
	return cmp.Or(version, unknown)
}
