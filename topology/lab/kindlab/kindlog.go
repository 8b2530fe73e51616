package kindlab

import (
	"fmt"
	"log/slog"
	"strings"

	kindlog "sigs.k8s.io/kind/pkg/log"
)

type kindLogger struct{ log *slog.Logger }

var _ kindlog.Logger = kindLogger{}

func (k kindLogger) Warn(message string)               { k.log.Debug("kind: " + strings.TrimSpace(message)) }
func (k kindLogger) Warnf(format string, args ...any)  { k.Warn(fmt.Sprintf(format, args...)) }
func (k kindLogger) Error(message string)              { k.log.Error("kind: " + strings.TrimSpace(message)) }
func (k kindLogger) Errorf(format string, args ...any) { k.Error(fmt.Sprintf(format, args...)) }

func (k kindLogger) V(level kindlog.Level) kindlog.InfoLogger {
	// kind prints whole command outputs from level 3 on.
	return kindInfo{log: k.log, enabled: level < 3}
}

type kindInfo struct {
	log     *slog.Logger
	enabled bool
}

func (k kindInfo) Enabled() bool { return k.enabled }

func (k kindInfo) Info(message string) {
	if message = strings.TrimSpace(message); k.enabled && message != "" {
		k.log.Debug("kind: " + message)
	}
}

func (k kindInfo) Infof(format string, args ...any) { k.Info(fmt.Sprintf(format, args...)) }
