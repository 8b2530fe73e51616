package audit

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// Cost is what reading an API server took.
type Cost struct {
	Requests int `json:"requests"`
	// Bytes are the size of all answers before compression.
	Bytes int64 `json:"bytes"`
	// PeakMemory is the most memory that this process has had, in bytes; 0 if it is not known.
	PeakMemory int64 `json:"peak_memory_bytes"`
}

// Meter counts what the clients of a configuration ask for and get.
type Meter struct{ requests, bytes atomic.Int64 }

// Measure counts for all clients that are made of a configuration from now on.
func Measure(config *rest.Config) *Meter {
	m := &Meter{}
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return metered{to, m} })
	return m
}

// Cost is what was counted so far.
func (m *Meter) Cost() Cost {
	return Cost{Requests: int(m.requests.Load()), Bytes: m.bytes.Load(), PeakMemory: peakMemory()}
}

type metered struct {
	to http.RoundTripper
	*Meter
}

func (t metered) RoundTrip(r *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	response, err := t.to.RoundTrip(r)
	if err == nil {
		response.Body = counted{response.Body, &t.bytes}
	}
	return response, err
}

type counted struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
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
