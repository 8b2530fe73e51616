package main

import "testing"

func TestLeftOnTheMachine(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after counts
		want          string
	}{
		{"as before", counts{1, 4, 3, 0}, counts{1, 4, 3, 0}, "left on the machine: nothing"},
		{"others removed theirs", counts{3, 4, 3, 0}, counts{1, 3, 2, 0}, "left on the machine: nothing"},
		{"a container and its link", counts{1, 4, 3, 0}, counts{2, 4, 4, 0}, "left on the machine: containers: 1, links: 1"},
		{"one of each", counts{}, counts{1, 1, 1, 1}, "left on the machine: containers: 1, Docker networks: 1, links: 1, processes started by relapse: 1"},
	} {
		if got := c.after.left(c.before); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
