package audit

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Cost is what reading an API server took.
type Cost struct {
	Requests int `json:"requests"`
	// Bytes are the size of all answers before compression.
	Bytes int64 `json:"bytes"`
	// PeakMemory is the most memory that this process has had, in bytes; 0 if it is not known.
	PeakMemory int64 `json:"peak_memory_bytes"`
	// Lists are Requests and Bytes of each resource, the one with most bytes first.
	Lists []ListCost `json:"lists"`
}

// ListCost is the cost of one resource.
type ListCost struct {
	Resource string `json:"resource"` // such as ciliumnodes.cilium.io
	Requests int    `json:"requests"`
	Bytes    int64  `json:"bytes"`
}

// Meter counts what the clients of a configuration ask for and get.
type Meter struct {
	mu    sync.Mutex
	lists map[string]*ListCost
}

// Measure counts for all clients that are made of a configuration from now on.
func Measure(config *rest.Config) *Meter {
	m := &Meter{lists: map[string]*ListCost{}}
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return metered{to, m} })
	return m
}

// Cost is what was counted so far.
func (m *Meter) Cost() Cost {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := Cost{PeakMemory: peakMemory(), Lists: []ListCost{}}
	for _, name := range slices.Sorted(maps.Keys(m.lists)) {
		l := *m.lists[name]
		c.Requests += l.Requests
		c.Bytes += l.Bytes
		c.Lists = append(c.Lists, l)
	}
	slices.SortStableFunc(c.Lists, func(a, b ListCost) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return c
}

func (m *Meter) add(resource string, requests int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lists[resource]
	if l == nil {
		l = &ListCost{Resource: resource}
		m.lists[resource] = l
	}
	l.Requests += requests
	l.Bytes += bytes
}

type metered struct {
	to http.RoundTripper
	*Meter
}

func (t metered) RoundTrip(r *http.Request) (*http.Response, error) {
	name := r.URL.Path
	for _, is := range resources {
		if strings.HasSuffix(name, path(is)) {
			name = is.GroupResource().String()
		}
	}
	t.add(name, 1, 0)
	response, err := t.to.RoundTrip(r)
	if err == nil {
		response.Body = &counted{response.Body, func(n int) { t.add(name, 0, int64(n)) }}
	}
	return response, err
}

type counted struct {
	io.ReadCloser
	add func(n int)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.add(n)
	return n, err
}

// peakMemory is VmHWM of proc(5).
func peakMemory() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	var kb int64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), "VmHWM:"); found {
			fmt.Sscanf(text, "%d kB", &kb)
		}
	}
	return kb * 1024
}
