// Package each makes a list of what a function says of each item of another list.
package each

import "strings"

// Of is what a function says of each item, in their order; nil for no items.
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
