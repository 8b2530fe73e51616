// Derived from the go.mod of x.dev/vendor@v0.0.0-20250813170300-a0db560f0520 and component.yaml.
// Do not edit: go test ./images -run Derivation -update writes it.
module github.com/relapse-dev/relapse/images/v

go 1.26

require (
	golang.org/x/net v0.30.0 // for v0.1.0
	golang.org/x/sys v0.40.0
	golang.org/x/text v0.3.0 // indirect
	x.dev/vendor v0.0.0-20250813170300-a0db560f0520
	x.dev/staged v0.0.0
)

replace x.dev/part => x.dev/fork v1.2.3

replace x.dev/api => x.dev/api v1.0.0

replace x.dev/staged => ./staging/x.dev/staged
