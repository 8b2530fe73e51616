// The Go that relapse builds images with in a container. What it builds is taken from the cache
// of another machine only if that one has the same Go.
module github.com/relapse-dev/relapse/images/relapse

go 1.26.0

require golang.org/toolchain v0.0.1-go1.26.8.linux-amd64
