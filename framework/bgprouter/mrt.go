package bgprouter

import (
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/bgp"
)

const (
	// maxDump is the size in bytes of the longest dump, uncompressed: some million prefixes, each
	// from a hundred peers.
	maxDump = 16 << 30
	// oldDump is the age from which a dump is called old: routers write one every 5 to 15 minutes, and their
	// routes may change meanwhile.
	oldDump = 5 * time.Minute
	// clockApart is how far clocks that are set by NTP are apart at most.
	clockApart = 10 * time.Second
)

type dumped struct {
	router Declared

	mu   sync.Mutex
	last bgp.Dump // the dump that RIB has read
	err  error    // why RIB has read none
	// at is when the dump was written: its own time, or the time of its file if that is earlier. ahead is how
	// far the dump's own time is after the time of its file, or after now.
	at    time.Time
	ahead time.Duration
}

// RIB implements snapshot.RouterReader. It reads the file anew.
func (d *dumped) RIB(ctx context.Context) ([]bgp.Path, error) {
	dump, written, err := readDump(ctx, d.router.File)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.err = dump, err
	if err == nil {
		// A copied file may be younger than the dump. A dump's time after the file's is from a clock that is
		// ahead: the dump would look young.
		d.at, d.ahead = dump.Time, dump.Time.Sub(written)
		if d.ahead > 0 {
			d.at = written
		}
	}
	return dump.Paths, err
}

// Neighbors implements snapshot.RouterReader: the neighbours of the dump that RIB has read.
func (d *dumped) Neighbors(context.Context) ([]bgp.Neighbor, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil && d.last.Time.IsZero() {
		return nil, errors.New("the dump has not been read yet")
	}
	return d.last.Neighbors, d.err
}

func (d *dumped) FIB(context.Context) ([]bgp.Route, error) { return nil, errNoFIB }

func (d *dumped) Describe(router *snapshot.Router) {
	d.router.Describe(router)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil || d.last.Time.IsZero() {
		return
	}
	router.IPv6, router.NoIPv4, router.At = d.last.IPv6, !d.last.IPv4, d.at
	remark(router, false, "%s is read from a table dump of %s: the second read is no second look, the best path is computed, and whether a "+
		"session without a path is up is not known.",
		router.Name, d.last.Time.Format(time.RFC3339))
	if d.ahead > clockApart {
		remark(router, true, "The table dump of %s is of a time %s after that of its file: a clock is wrong, and the dump may be older than "+
			"the file of %s.", router.Name, d.ahead.Round(time.Second), d.at.UTC().Format(time.RFC3339))
	}
	d.router.aged(router, "The table dump of "+router.Name+" is")
	if d.last.Others != "" {
		remark(router, true, "The table dump of %s has records that are not read, and that may change routes: %s.", router.Name, d.last.Others)
	}
}

// readDump reads a dump, and when its file was written: now at the latest. A file that changes
// meanwhile is an error, because a dump does not say where it ends.
func readDump(ctx context.Context, name string) (bgp.Dump, time.Time, error) {
	file, err := os.Open(name)
	if err != nil {
		return bgp.Dump{}, time.Time{}, err
	}
	defer file.Close()
	before, err := file.Stat()
	if err != nil {
		return bgp.Dump{}, time.Time{}, err
	}
	content, err := unpacked(&counted{ctx: ctx, from: file, left: maxDump})
	if err != nil {
		return bgp.Dump{}, time.Time{}, fmt.Errorf("unpacking %s: %w", name, err)
	}
	dump, err := bgp.MRT(&counted{ctx: ctx, from: content, left: maxDump})
	if err == nil && !dump.IPv4 && !dump.IPv6 {
		err = errors.New("the dump has no route")
	}
	if err == nil {
		var final os.FileInfo
		if final, err = os.Stat(name); err == nil && (!os.SameFile(before, final) || final.Size() != before.Size() ||
			!final.ModTime().Equal(before.ModTime())) {
			err = errors.New("it was written while it was read")
		}
	}
	if err != nil {
		return bgp.Dump{}, time.Time{}, fmt.Errorf("%s: %w", name, err)
	}
	written := before.ModTime()
	if now := time.Now(); written.After(now) {
		written = now
	}
	return dump, written, nil
}

func unpacked(from io.Reader) (io.Reader, error) {
	content := bufio.NewReader(from)
	begins, err := content.Peek(3)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case len(begins) == 3 && begins[0] == 0x1f && begins[1] == 0x8b:
		return gzip.NewReader(content)
	case string(begins) == "BZh":
		return bzip2.NewReader(content), nil
	}
	return content, nil
}

// counted is a reader that ends at a size, and with a context.
type counted struct {
	ctx  context.Context
	from io.Reader
	left int64
}

func (c *counted) Read(to []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.from.Read(to)
	if c.left -= int64(n); c.left < 0 {
		return 0, fmt.Errorf("it has more than %d bytes", maxDump)
	}
	return n, err
}
