package soak

import (
	"maps"
	"slices"
)

// Quantity is counted after each run.
type Quantity struct {
	Name string
	Unit string // "bytes", or empty for a number
	Of   Scope
}

// Scope says which runs are compared.
type Scope int

// Scopes of quantities.
const (
	// OfLab: those after which the lab was still up, lab by lab.
	OfLab Scope = iota
	// OfProgram: all.
	OfProgram
	// OfMachine: those after which any lab was still up, and separately the others.
	OfMachine
)

// Quantities are those that are counted, in the order of the table.
var Quantities = []Quantity{
	{Name: "relapse: open files", Of: OfProgram},
	{Name: "relapse: goroutines", Of: OfProgram},
	{Name: "relapse: threads", Of: OfProgram},
	{Name: "relapse: children", Of: OfProgram},
	{Name: "relapse: heap", Unit: "bytes", Of: OfProgram},
	{Name: "relapse: resident memory", Unit: "bytes", Of: OfProgram},
	{Name: "relapse: temporary files", Of: OfProgram},
	{Name: "report: files of a run"},
	{Name: "report: size of a run", Unit: "bytes"},
	{Name: "lab: containers"},
	{Name: "lab: networks"},
	{Name: "lab: files of its state"},
	{Name: "lab: processes"},
	{Name: "lab: network namespaces of pods"},
	{Name: "lab: links"},
	{Name: "lab: routes"},
	{Name: "lab: rules of nftables"},
	{Name: "lab: rules of iptables-legacy"},
	{Name: "machine: volumes", Of: OfMachine},
	{Name: "machine: network namespaces", Of: OfMachine},
	{Name: "machine: mounts", Of: OfMachine},
	{Name: "machine: links", Of: OfMachine},
	{Name: "machine: routes", Of: OfMachine},
	{Name: "machine: rules of nftables", Of: OfMachine},
	{Name: "machine: rules of iptables-legacy", Of: OfMachine},
}

// Enough is how many runs are needed to say whether a quantity grows.
const Enough = 20

// parts is how many parts the last half is cut into.
const parts = 5

// steadily reports whether values grow steadily: over the last half of them, split in
// five parts, both the lowest and the highest value rise from each part to the next. A
// cache that fills in the first half, a value that goes up and down, and a single step do
// not grow steadily. Growth of less than one in a tenth of all runs is not recognised.
//
// Random values grow steadily in fewer than 1 of 1,000 cases (TestLuck). With fewer
// values than Enough the result is not known.
func steadily(values []int64) (grows, known bool) {
	if len(values) < Enough {
		return false, false
	}
	half := values[len(values)/2:]
	var low, high int64
	for i := range parts {
		part := half[i*len(half)/parts : (i+1)*len(half)/parts]
		l, h := slices.Min(part), slices.Max(part)
		if i > 0 && (l <= low || h <= high) {
			return false, true
		}
		low, high = l, h
	}
	return true, true
}

// slope is the median of the slopes between any two values of the last half.
func slope(values []int64) float64 {
	half := values[len(values)/2:]
	var slopes []float64
	for i := range half {
		for j := i + 1; j < len(half); j++ {
			slopes = append(slopes, float64(half[j]-half[i])/float64(j-i))
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	slices.Sort(slopes)
	return (slopes[(len(slopes)-1)/2] + slopes[len(slopes)/2]) / 2
}

// growthOf is the growth of each quantity that was counted.
func growthOf(runs []Run) []Growth {
	all := []Growth{}
	for _, q := range Quantities {
		series := map[int][]int64{}
		for _, run := range runs {
			value, counted := run.Counts[q.Name]
			if !counted || q.Of == OfLab && !run.Kept {
				continue
			}
			key := 0
			switch {
			case q.Of == OfLab:
				key = run.Lab
			case q.Of == OfMachine && run.Kept:
				key = 1
			}
			series[key] = append(series[key], value)
		}
		if len(series) == 0 {
			continue
		}
		var compared []int64
		for _, key := range slices.Sorted(maps.Keys(series)) {
			one := series[key]
			if grows, _ := steadily(one); grows {
				compared = one
				break
			}
			if len(one) > len(compared) {
				compared = one
			}
		}
		g := Growth{
			What: q.Name, Runs: len(compared), First: compared[0], Last: compared[len(compared)-1],
			Min: slices.Min(compared), Max: slices.Max(compared), PerRun: slope(compared),
		}
		if grows, known := steadily(compared); known {
			g.Steadily = &grows
		}
		all = append(all, g)
	}
	return all
}
