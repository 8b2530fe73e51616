package kindlab

import (
	"fmt"
	"log/slog"
	"strings"

	kindlog "sigs.k8s.io/kind/pkg/log"
)

// kindLogger is kind's logger, and the logger of each of its levels.
type kindLogger struct {
	log   *slog.Logger
	quiet bool
}

var _ kindlog.Logger = kindLogger{}

func (k kindLogger) Warn(message string)               { k.log.Debug("kind: " + strings.TrimSpace(message)) }
func (k kindLogger) Warnf(format string, args ...any)  { k.Warn(fmt.Sprintf(format, args...)) }
func (k kindLogger) Error(message string)              { k.log.Error("kind: " + strings.TrimSpace(message)) }
func (k kindLogger) Errorf(format string, args ...any) { k.Error(fmt.Sprintf(format, args...)) }

func (k kindLogger) V(level kindlog.Level) kindlog.InfoLogger {
	// kind prints whole command outputs from level 3 on.
	return kindLogger{k.log, level >= 3}
}

func (k kindLogger) Enabled() bool                    { return !k.quiet }
func (k kindLogger) Infof(format string, args ...any) { k.Info(fmt.Sprintf(format, args...)) }

func (k kindLogger) Info(message string) {
	if message = strings.TrimSpace(message); !k.quiet && message != "" {
		k.log.Debug("kind: " + message)
	}
}
