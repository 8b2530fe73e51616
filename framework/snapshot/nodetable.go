package snapshot

import "context"

// NodeTable is the main routing table of one node's kernel.
type NodeTable struct {
	Node   string      `json:"node"`
	Routes List[Route] `json:"routes"`
}

// NodeTables is the source of the nodes' main routing tables.
var NodeTables = perNode("routes of the nodes", tableReader, func(s *Snapshot) *[]NodeTable { return &s.NodeTables })

func (t NodeTable) on() string { return t.Node }

func (t NodeTable) parts() []part {
	return []part{listPart("routes of "+t.Node, t.Routes, routeState(Kernel, t.Node))}
}

func tableReader(node string, m Machine) func(context.Context) NodeTable {
	return func(ctx context.Context) NodeTable {
		return NodeTable{Node: node, Routes: list(ctx, func(ctx context.Context) ([]Route, error) { return routesOf(ctx, m) })}
	}
}
