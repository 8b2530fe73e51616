//go:build night

package scenariotest

// night is true in builds for the night, which runs slow scenarios as well.
const night = true
