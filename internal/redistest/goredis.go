package redistest

import (
	"reflect"

	"github.com/redis/go-redis/v9"
)

// DialOnce makes a client try only once to open a connection. Old versions of
// go-redis, which have no such option, never try twice.
func DialOnce(o *redis.UniversalOptions) {
	if retries := reflect.ValueOf(o).Elem().FieldByName("DialerRetries"); retries.IsValid() {
		retries.SetInt(1)
	}
}
