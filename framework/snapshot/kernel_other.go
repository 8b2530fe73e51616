//go:build !linux

package snapshot

import (
	"context"
	"errors"
)

// errOtherKernel is why a node's kernel is not asked: its tables are read by the pods of an audit, or by a harness on Linux.
var errOtherKernel = errors.New("the tables of a kernel are read on Linux alone")

func routesOf(context.Context, Machine) ([]Route, error)            { return nil, errOtherKernel }
func socketsOf(context.Context, Machine) ([]Socket, error)          { return nil, errOtherKernel }
func flowsOf(context.Context, Machine) ([]Flow, error)              { return nil, errOtherKernel }
func programsOf(context.Context, Machine) ([]Program, error)        { return nil, errOtherKernel }
func nftServices(context.Context, Machine) ([]VirtualServer, error) { return nil, errOtherKernel }
func unreadableSets(context.Context, Machine) ([]string, error)     { return nil, errOtherKernel }
func interfacesOf(context.Context, Machine, *sightings) ([]Interface, error) {
	return nil, errOtherKernel
}
