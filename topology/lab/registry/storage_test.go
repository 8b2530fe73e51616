package registry

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestLinked(t *testing.T) {
	archive := must.Get(Linked(map[string]map[string]string{
		"pause":          {"sha256:aa01": "/cache/aa01", "sha256:bb02": "/cache/bb02"},
		"cilium/cilium":  {"sha256:aa01": "/cache/aa01"},
		"without/digest": nil,
	}))(t)
	got := map[string]string{}
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.NoError(t, err)
		content := must.Get(io.ReadAll(files))(t)
		if _, twice := got[header.Name]; twice {
			t.Errorf("%s is there twice", header.Name)
		}
		got[header.Name] = header.Linkname + string(content)
	}
	const root = "docker/registry/v2/"
	want := map[string]string{
		root + "blobs/sha256/aa/aa01/data":                           "/cache/aa01",
		root + "blobs/sha256/bb/bb02/data":                           "/cache/bb02",
		root + "repositories/pause/_layers/sha256/aa01/link":         "sha256:aa01",
		root + "repositories/pause/_layers/sha256/bb02/link":         "sha256:bb02",
		root + "repositories/cilium/cilium/_layers/sha256/aa01/link": "sha256:aa01",
	}
	must.Equal(t, "", want, got)
	must.Fail(t, must.Err(Linked(map[string]map[string]string{"x": {"aa01": "/"}})), `"aa01" is not a digest`)
}
