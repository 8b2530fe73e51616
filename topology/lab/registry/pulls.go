package registry

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Pull is a node's request for an image by name.
type Pull struct {
	// Time is the time of the response, to the second.
	Time time.Time `json:"time"`
	// Client is the node's address.
	Client netip.Addr `json:"client"`
	// Image is the name without tag, with the host of the node's own request.
	Image string `json:"image"`
	// Reference is the requested tag or digest.
	Reference string `json:"reference"`
	// Digest is the digest that the node then fetched. It is empty if the node fetched
	// nothing, because it had the image already or because there is none.
	Digest string `json:"digest,omitempty"`
	// Status is the HTTP status of the response.
	Status int `json:"status"`
}

// request is a line of the registry's access log, which is in the combined log format.
var request = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\] "(GET|HEAD) (/v2/\S+) [^"]*" (\d+) \S+ "[^"]*" "containerd/`)

const combinedTime = "02/Jan/2006:15:04:05 -0700"

// ParseLog reads the pulls from a registry's log, in its order. Only requests by containerd count,
// because nodes pull by containerd. It skips lines that are not in the format of the access log.
func ParseLog(log string) []Pull {
	var pulls []Pull
	// requests holds the index in pulls of the last request for each node and image. The
	// node may then fetch the manifest by digest.
	type key struct {
		client netip.Addr
		image  string
	}
	requests := map[key]int{}
	for line := range strings.Lines(log) {
		p, fetches, ok := parseRequest(line)
		if !ok {
			continue
		}
		k := key{p.Client, p.Image}
		last, requested := requests[k]
		switch {
		case !fetches || !requested:
			pulls = append(pulls, p)
			requests[k] = len(pulls) - 1
		case pulls[last].Digest == "":
			pulls[last].Digest = p.Reference
		} // else it is a manifest that an index names
	}
	return pulls
}

// parseRequest reads one line. fetches reports whether it is the GET of a manifest by
// digest: containerd resolves names by HEAD before that.
func parseRequest(line string) (p Pull, fetches, ok bool) {
	m := request.FindStringSubmatch(line)
	if m == nil {
		return Pull{}, false, false
	}
	client, err := netip.ParseAddr(m[1])
	if err != nil {
		return Pull{}, false, false
	}
	at, err := time.Parse(combinedTime, m[2])
	if err != nil {
		return Pull{}, false, false
	}
	target, err := url.ParseRequestURI(m[4])
	if err != nil {
		return Pull{}, false, false
	}
	repository, reference, ok := strings.Cut(strings.TrimPrefix(target.Path, "/v2/"), "/manifests/")
	if !ok || repository == "" || reference == "" {
		return Pull{}, false, false
	}
	p = Pull{Time: at, Client: client, Image: repository, Reference: reference}
	if ns := target.Query().Get("ns"); ns != "" {
		p.Image = ns + "/" + repository
	}
	p.Status, _ = strconv.Atoi(m[5]) // the expression matches digits only
	fetches = m[3] == "GET" && strings.HasPrefix(reference, "sha256:")
	return p, fetches, true
}
