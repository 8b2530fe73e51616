package soak

import (
	"maps"
	"slices"
)

// Quantity is something that is counted after each run.
type Quantity struct {
	Name string
	Unit string // "bytes", or empty for a number
	Of   Scope
}

// Scope says which runs are compared.
type Scope int

// Scopes of quantities.
const (
	// OfLab: those that have left their lab running, lab by lab.
	OfLab Scope = iota
	// OfProgram: all.
	OfProgram
	// OfMachine: those that have left a lab running, whichever it was, and those that
	// have taken theirs down.
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

// Enough is how many runs it takes to tell whether something grows.
const Enough = 20

// parts is how many parts the last half is cut into.
const parts = 5

// steadily tells whether values grow steadily: in the last half of them, cut into five,
// both the lowest and the highest value rise from each fifth to the next. Neither
// what is filled once, in the first half, grows steadily, nor what goes up and down, nor
// what has made a step. What grows by less than one in a tenth of all runs is not told
// from these.
//
// Values that only luck moves come out so in less than 1 of 1,000 cases
// (TestLuck). Of fewer values than Enough nothing is known.
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

// growthOf says what became of each quantity that was counted.
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
		var told []int64
		for _, key := range slices.Sorted(maps.Keys(series)) {
			one := series[key]
			if grows, _ := steadily(one); grows {
				told = one
				break
			}
			if len(one) > len(told) {
				told = one
			}
		}
		g := Growth{
			What: q.Name, Runs: len(told), First: told[0], Last: told[len(told)-1], Min: slices.Min(told), Max: slices.Max(told),
			PerRun: slope(told),
		}
		if grows, known := steadily(told); known {
			g.Steadily = &grows
		}
		all = append(all, g)
	}
	return all
}
