package option

import "github.com/spf13/cast"

const (
	Tunnel = "tunnel"
	Old    = "old-" + "key"
	NoFlag = "no-flag"
)

func New() any { return nil }

func ReplaceDeprecatedFields(m map[string]any) {
	fields := map[string]string{"older-key": Tunnel}
	_ = fields
}

func validateConfigMapFlag(kind string, value any) (err error) {
	switch kind {
	case "bool":
		_, err = cast.ToBoolE(value)
	case "int":
		_, err = cast.ToInt64E(value)
	}
	return err
}
