//go:build !night

package scenariotest

// night tells whether tests are built for the night, which runs slow scenarios as well.
const night = false
