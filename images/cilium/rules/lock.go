package rules

import (
	"fmt"
	"reflect"
	"strconv"
	"time"
	"unsafe"

	"github.com/cilium/cilium/pkg/option"
)

// LockSeconds is for how many seconds a call of iptables waits for the lock of another
// one: the vendor's key iptables-lock-timeout.
func LockSeconds() int { return int(option.Config.IPTablesLockTimeout / time.Second) }

// WaitForLock has the vendor's manager of these rules wait for iptables' lock. That is a
// part of its Init, which the slice cannot call (see the package's documentation). The
// manager is the pointer to a struct with a field waitArgs, as in versions below 1.11.
func WaitForLock(manager interface{}) error {
	args := reflect.ValueOf(manager).Elem().FieldByName("waitArgs")
	if !args.IsValid() || args.Type() != reflect.TypeOf([]string{}) {
		return fmt.Errorf("%T has no list waitArgs: this version keeps the arguments by which iptables waits for its lock elsewhere", manager)
	}
	// The field is not exported.
	*(*[]string)(unsafe.Pointer(args.UnsafeAddr())) = []string{"-w", strconv.Itoa(LockSeconds())}
	return nil
}
