package registry

import (
	"archive/tar"
	"bytes"
	"fmt"
	"path"
	"strings"
)

// Linked returns a tar archive for the storage folder of a registry (the filesystem
// driver of distribution). It gives the registry blobs without copies: symbolic
// links to files. They are given by repository and digest ("sha256:...").
//
// Manifests and tags must be pushed. A client pushes only missing blobs, so a
// registry with another storage format gets them with the push.
func Linked(files map[string]map[string]string) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(header tar.Header, content string) error {
		header.Mode, header.Size = 0o644, int64(len(content))
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err := w.Write([]byte(content))
		return err
	}
	const root = "docker/registry/v2"
	done := map[string]bool{} // repositories share blobs
	for repository, digests := range files {
		for digest, file := range digests {
			algorithm, sum, ok := strings.Cut(digest, ":")
			if !ok || len(sum) < 2 {
				return nil, fmt.Errorf("%q is not a digest", digest)
			}
			data := path.Join(root, "blobs", algorithm, sum[:2], sum, "data")
			if !done[data] {
				done[data] = true
				link := tar.Header{Typeflag: tar.TypeSymlink, Name: data, Linkname: file}
				if err := add(link, ""); err != nil {
					return nil, err
				}
			}
			link := path.Join(root, "repositories", repository, "_layers", algorithm, sum, "link")
			if err := add(tar.Header{Typeflag: tar.TypeReg, Name: link}, digest); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}
