package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	"helm.sh/helm/v3/pkg/chart"
)

// node is what a chart knows of one of its values.
type node struct {
	keys map[string]*node
	// free is set for a map whose keys are the user's own, such as annotations, or those
	// of Kubernetes, such as an update strategy. All below it is known.
	free bool
}

// at returns the node at a path below n, and makes it if need be.
func (n *node) at(path ...string) *node {
	for _, key := range path {
		if n.keys == nil {
			n.keys = map[string]*node{}
		}
		if n.keys[key] == nil {
			n.keys[key] = &node{}
		}
		n = n.keys[key]
	}
	return n
}

// knownBy collects the values that a chart knows: those of values.yaml, of the schema, and
// those that only its templates name.
func knownBy(c *chart.Chart, defaults map[string]any) (*node, error) {
	root := &node{}
	root.addValues(defaults)
	root.at("global").free = true // of Helm itself: for charts that depend on each other
	var add func(c *chart.Chart, path []string) error
	add = func(c *chart.Chart, path []string) error {
		if len(c.Schema) > 0 {
			var s schema
			if err := json.Unmarshal(c.Schema, &s); err != nil {
				return fmt.Errorf("values.schema.json of %s: %w", c.Name(), err)
			}
			root.at(path...).addSchema(s)
		}
		for _, file := range c.Templates {
			trees, err := parseTemplate(file)
			if err != nil {
				return err
			}
			for _, tree := range trees {
				if tree.Root != nil {
					u := uses{root: root.at(path...)}
					u.node(tree.Root, nil)
				}
			}
		}
		for _, on := range c.Dependencies() {
			// Its condition, such as crds.enabled, need not be among its own values.
			if err := add(on, append(slices.Clone(path), on.Name())); err != nil {
				return err
			}
		}
		if c.Metadata == nil {
			return nil
		}
		for _, on := range c.Metadata.Dependencies {
			for condition := range strings.SplitSeq(on.Condition, ",") {
				if condition != "" {
					root.at(append(slices.Clone(path), strings.Split(condition, ".")...)...)
				}
			}
		}
		return nil
	}
	return root, add(c, nil)
}

func (n *node) addValues(values map[string]any) {
	for key, value := range values {
		at := n.at(key)
		switch value := value.(type) {
		case map[string]any:
			// A map without a default is filled by the user.
			at.free = at.free || len(value) == 0
			at.addValues(value)
		case nil:
			at.free = true
		}
	}
}

// schema is the part of a JSON schema that names keys.
type schema struct {
	Properties map[string]schema `json:"properties"`
	// Additional is false, true or a schema.
	Additional json.RawMessage `json:"additionalProperties"`
	AnyOf      []schema        `json:"anyOf"`
	OneOf      []schema        `json:"oneOf"`
	AllOf      []schema        `json:"allOf"`
}

// UnmarshalJSON also takes the schemas true and false, which name no keys.
func (s *schema) UnmarshalJSON(text []byte) error {
	type fields schema
	if len(text) > 0 && text[0] != '{' {
		return nil
	}
	return json.Unmarshal(text, (*fields)(s))
}

func (n *node) addSchema(s schema) {
	if len(s.Additional) > 0 && string(s.Additional) != "false" {
		n.free = true
	}
	for key, property := range s.Properties {
		n.at(key).addSchema(property)
	}
	for _, part := range slices.Concat(s.AnyOf, s.OneOf, s.AllOf) {
		n.addSchema(part)
	}
}

func parseTemplate(file *chart.File) (map[string]*parse.Tree, error) {
	tree := parse.New(file.Name)
	tree.Mode = parse.SkipFuncCheck
	all := map[string]*parse.Tree{}
	_, err := tree.Parse(string(file.Data), "", "", all)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	return all, nil
}

// uses records which values a template names, and which it takes as they are.
type uses struct{ root *node }

// whole are the functions of templates that write a map as it is.
var whole = []string{"toYaml", "toJson", "tpl"}

// node walks a part of a template. dot is the path of the value that is the template's
// cursor there; nil if the cursor is something else.
func (u uses) node(n parse.Node, dot []string) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			u.node(child, dot)
		}
	case *parse.ActionNode:
		u.pipe(n.Pipe, dot)
	case *parse.TemplateNode:
		u.pipe(n.Pipe, dot)
	case *parse.IfNode:
		u.branch(&n.BranchNode, dot, dot)
	case *parse.WithNode:
		u.branch(&n.BranchNode, dot, u.value(n.Pipe, dot))
	case *parse.RangeNode:
		// The keys of what it ranges over are the user's.
		if over := u.value(n.Pipe, dot); over != nil {
			u.root.at(over...).free = true
		}
		u.branch(&n.BranchNode, dot, nil)
	}
}

func (u uses) branch(n *parse.BranchNode, dot, within []string) {
	u.pipe(n.Pipe, dot)
	u.node(n.List, within)
	u.node(n.ElseList, dot)
}

// pipe records the values in a pipeline.
func (u uses) pipe(p *parse.PipeNode, dot []string) {
	if p == nil {
		return
	}
	for i, c := range p.Cmds {
		function := ""
		if name, is := c.Args[0].(*parse.IdentifierNode); is {
			function = name.Ident
		}
		for _, arg := range c.Args {
			if inner, is := arg.(*parse.PipeNode); is {
				u.pipe(inner, dot)
			}
			path := u.path(arg, dot)
			if path == nil {
				continue
			}
			next := ""
			if i+1 < len(p.Cmds) {
				if name, is := p.Cmds[i+1].Args[0].(*parse.IdentifierNode); is {
					next = name.Ident
				}
			}
			at := u.root.at(path...)
			if len(path) > 0 && (slices.Contains(whole, function) || slices.Contains(whole, next)) {
				at.free = true
			}
		}
	}
}

// value is the path of the value that a pipeline is; nil if it is something else.
func (u uses) value(p *parse.PipeNode, dot []string) []string {
	if p == nil || len(p.Cmds) != 1 || len(p.Cmds[0].Args) != 1 {
		return nil
	}
	return u.path(p.Cmds[0].Args[0], dot)
}

// path is the path of the value that an argument is; nil if it is something else.
func (u uses) path(arg parse.Node, dot []string) []string {
	var names []string
	switch arg := arg.(type) {
	case *parse.DotNode:
		return dot
	case *parse.FieldNode: // .Values.a.b, or .b where the cursor is .Values.a
		names = arg.Ident
		if dot != nil && names[0] != "Values" {
			return append(slices.Clone(dot), names...)
		}
	case *parse.VariableNode: // $.Values.a.b
		if arg.Ident[0] != "$" {
			return nil
		}
		names = arg.Ident[1:]
	case *parse.ChainNode: // (.Values.a).b
		if inner, is := arg.Node.(*parse.PipeNode); is {
			if path := u.value(inner, dot); path != nil {
				return append(path, arg.Field...)
			}
		}
		return nil
	default:
		return nil
	}
	if len(names) < 2 || names[0] != "Values" || slices.Contains(names, "AsMap") {
		return nil
	}
	return slices.Clone(names[1:])
}

// Unknown returns the paths of values that the chart does not know, such as a.b.c, in
// order. What the user names within a free map, such as annotations, a node selector or
// extraConfig, is not unknown.
func (c *Chart) Unknown(values map[string]any) []string {
	var unknown []string
	var walk func(n *node, values map[string]any, path []string)
	walk = func(n *node, values map[string]any, path []string) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			at := append(slices.Clone(path), key)
			known := n.keys[key]
			switch inner, isMap := values[key].(map[string]any); {
			case known == nil:
				unknown = append(unknown, strings.Join(at, "."))
			case isMap && !known.free:
				walk(known, inner, at)
			}
		}
	}
	walk(c.known, values, nil)
	return unknown
}

// Known returns the paths of all values that the chart knows, in order.
func (c *Chart) Known() []string {
	var all []string
	var walk func(n *node, path string)
	walk = func(n *node, path string) {
		for _, key := range slices.Sorted(maps.Keys(n.keys)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			all = append(all, at)
			walk(n.keys[key], at)
		}
	}
	walk(c.known, "")
	return all
}
