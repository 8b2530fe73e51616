package registry

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Pull is one question of a node for an image: what is behind this name?
type Pull struct {
	// Time is when the registry answered, to the second.
	Time time.Time `json:"time"`
	// Client is the node's address.
	Client netip.Addr `json:"client"`
	// Image is the name without tag, with the host that the node thinks it
	// asks.
	Image string `json:"image"`
	// Reference is the tag or digest that the node asked for.
	Reference string `json:"reference"`
	// Digest is what the node then fetched. It is empty if the node fetched
	// nothing: because it had that image already, or because there is none.
	Digest string `json:"digest,omitempty"`
	// Status is the HTTP status of the answer.
	Status int `json:"status"`
}

// request is a line of the registry's access log, which is in the combined
// log format.
var request = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\] "(GET|HEAD) (/v2/\S+) [^"]*" (\d+) \S+ "[^"]*" "containerd/`)

const combinedTime = "02/Jan/2006:15:04:05 -0700"

// ParseLog reads the pulls from a registry's log, in its order. Only requests
// by containerd count: those are the nodes'. Lines that are not in the format of
// the access log are skipped.
func ParseLog(log string) []Pull {
	var pulls []Pull
	// open holds, for each node and image, the index in pulls of the last request
	// by name: the node may fetch what it stands for, by digest, next.
	type asker struct {
		client netip.Addr
		image  string
	}
	open := map[asker]int{}
	for line := range strings.Lines(log) {
		p, fetches, ok := parseRequest(line)
		if !ok {
			continue
		}
		who := asker{p.Client, p.Image}
		last, asked := open[who]
		switch {
		case !fetches || !asked:
			pulls = append(pulls, p)
			open[who] = len(pulls) - 1
		case pulls[last].Digest == "":
			pulls[last].Digest = p.Reference
		} // else it is a manifest that the first one names
	}
	return pulls
}

// parseRequest reads one line. A request fetches if it asks for a manifest by
// digest that an answer before has named: containerd asks with HEAD first.
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
	p.Status, _ = strconv.Atoi(m[5]) // the expression lets nothing but digits pass
	fetches = m[3] == "GET" && strings.HasPrefix(reference, "sha256:")
	return p, fetches, true
}
