// Package fault holds the changes that start incidents, each with its undo.
package fault
