package cell

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"
)

type Config struct {
	Wait, Hidden time.Duration
	Most         uint32
	From         string
}

var defaults = Config{Wait: time.Minute, Hidden: 2 * time.Second, Most: math.MaxUint32, From: where()}

func where() string { return "" }

func (def Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("wait", def.Wait, "")
	flags.Duration("hidden-wait", def.Hidden, "")
	flags.MarkHidden("hidden-wait")
	flags.Uint32("hidden-most", def.Most, "")
	flags.MarkDeprecated("hidden-most", fmt.Sprintf("use --%s", "wait"))
	flags.String("hidden-from", def.From, "")
	flags.MarkHidden("hidden-from")
}
