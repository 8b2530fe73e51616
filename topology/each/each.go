// Package each asks a function about each item of a list.
package each

import (
	"cmp"
	"slices"
	"strings"
)

// Of are the results of a function for each item, in their order; nil for no items.
func Of[T, R any](items []T, says func(T) R) []R {
	var all []R
	for _, item := range items {
		all = append(all, says(item))
	}
	return all
}

// Joined is Of with a separator in between.
func Joined[T any](items []T, separator string, says func(T) string) string {
	return strings.Join(Of(items, says), separator)
}

// As are the items of a type, in their order; nil for none.
func As[T any](items []any) []T {
	var all []T
	for _, item := range items {
		if item, ok := item.(T); ok {
			all = append(all, item)
		}
	}
	return all
}

// First is the first item for which a function returns true; false if there is none.
func First[T any](items []T, holds func(T) bool) (first T, there bool) {
	i := slices.IndexFunc(items, holds)
	if i < 0 {
		return first, false
	}
	return items[i], true
}

// Once are the different items, sorted; nil for none.
func Once[T cmp.Ordered](items []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(items)))
}

// Where are the items for which a function returns true, in their order; nil for none.
func Where[T any](items []T, holds func(T) bool) []T {
	var all []T
	for _, item := range items {
		if holds(item) {
			all = append(all, item)
		}
	}
	return all
}
