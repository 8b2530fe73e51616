// Package status makes errors with an exit status of relapse. Their texts are as of fmt.Errorf.
package status

import "fmt"

type stated struct {
	error
	status int
}

func (e *stated) Unwrap() error      { return e.error }
func (e *stated) RelapseStatus() int { return e.status }

// Input is an error of bad usage or bad input: status 2.
func Input(format string, args ...any) error { return &stated{fmt.Errorf(format, args...), 2} }

// Machine is an error of this machine, which cannot run it: status 3.
func Machine(format string, args ...any) error { return &stated{fmt.Errorf(format, args...), 3} }
