package rules

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"

	"github.com/cilium/cilium/daemon/cmd"
	"github.com/cilium/cilium/pkg/option"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/relapse-dev/relapse/images/cilium/end"
)

// flagsCommand prints the vendor's flags, which are also the keys of its
// ConfigMap, in order of name.
func flagsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "flags",
		Short: "Print the agent's flags as JSON",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			type flag struct {
				Name       string `json:"name"`
				Type       string `json:"type"`
				Default    string `json:"default"`
				Deprecated string `json:"deprecated,omitempty"`
				Hidden     bool   `json:"hidden,omitempty"`
			}
			var flags []flag
			cmd.RootCmd.Flags().VisitAll(func(f *pflag.Flag) {
				flags = append(flags, flag{f.Name, f.Value.Type(), f.DefValue, f.Deprecated, f.Hidden})
			})
			sort.Slice(flags, func(i, j int) bool { return flags[i].Name < flags[j].Name })
			printJSON(flags)
		},
	}
}

// effectiveCommand takes the agent's flags, and prints what the vendor's code
// has made of them, of the environment and of the ConfigMap. Where that ends
// the agent, it ends the command in the same way, and prints nothing.
func effectiveCommand(v Version) *cobra.Command {
	c := &cobra.Command{
		Use:   "effective",
		Short: "Print the agent's effective configuration as JSON",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			populate()
			result := struct {
				// Values are the values of all keys.
				Values map[string]string `json:"values"`
				// Fields are those of pkg/option.DaemonConfig.
				Fields map[string]string `json:"fields"`
				// Invalid says why the agent does not start.
				Invalid           string `json:"invalid,omitempty"`
				Masquerade        bool   `json:"masquerade"`
				NativeRoutingCIDR string `json:"native_routing_cidr"`
			}{Values: map[string]string{}, Fields: fields(reflect.ValueOf(option.Config).Elem())}
			if err := option.Config.Validate(); err != nil {
				result.Invalid = err.Error()
			}
			for _, key := range viper.AllKeys() {
				result.Values[key] = fmt.Sprint(viper.Get(key))
			}
			result.Masquerade = v.Masquerade()
			if c := v.NativeRoutingCIDR(); c != nil {
				result.NativeRoutingCIDR = c.String()
			}
			result.Fields["NativeRoutingCIDR"] = result.NativeRoutingCIDR
			printJSON(result)
		},
	}
	c.Flags().AddFlagSet(cmd.RootCmd.Flags())
	return c
}

// fields prints what a configuration is made of: the fields that are plain
// values, or lists and maps of them.
func fields(config reflect.Value) map[string]string {
	all := map[string]string{}
	for i := 0; i < config.NumField(); i++ {
		if f := config.Field(i); plain(f.Type()) {
			all[config.Type().Field(i).Name] = fmt.Sprint(f)
		}
	}
	return all
}

func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return plain(t.Elem())
	case reflect.Map:
		return plain(t.Key()) && (plain(t.Elem()) || t.Elem().Kind() == reflect.Struct && t.Elem().NumField() == 0)
	case reflect.Ptr, reflect.Struct, reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return false
	}
	return true
}

func printJSON(v interface{}) {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		end.With("Unable to print", err)
	}
	os.Exit(0)
}
