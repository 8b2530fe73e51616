module x.dev/vendor

go 1.17

toolchain go1.17.1

require (
	golang.org/x/net v0.1.0
	golang.org/x/sys v0.40.0
	golang.org/x/text v0.3.0 // indirect
)

replace x.dev/part => x.dev/fork v1.2.3
