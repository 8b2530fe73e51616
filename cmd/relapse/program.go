package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// thisProgram identifies this program for reports, by its version and the digest of its file.
func thisProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	return fmt.Sprintf("%s sha256:%s", thisVersion(), hex.EncodeToString(sum.Sum(nil))[:16]), nil
}

func thisVersion() string {
	const unknown = "(devel)" // as go build has it
	if info, known := debug.ReadBuildInfo(); known && info.Main.Version != "" && info.Main.Version != unknown {
		return info.Main.Version
	}
	_, version := archived(archivedCommit)
	return cmp.Or(version, unknown)
}
