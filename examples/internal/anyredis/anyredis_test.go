package anyredis

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A Redis is opened by each form of address, and named without its password.
func TestOpen(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.RequireUserAuth("me", "s ecret")
	open := miniredis.RunT(t)
	for _, address := range []string{"", open.Addr(), "redis://" + open.Addr() + "/3", "redis://me:s%20ecret@" + mini.Addr()} {
		store, err := Open(t.Context(), address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if store.Name == "" || strings.Contains(store.Name, "ecret") {
			t.Errorf("%s is named %q", address, store.Name)
		}
		store.Close()
	}
}

// An error is one line that tells no password.
func TestOpen_refuses(t *testing.T) {
	t.Parallel()
	addresses := []string{
		"localhost", ":1", "127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "me:secret@localhost:6379", "http://secret@x", "redis://me:sec#ret@h:1", "redis://h:1/secret", "redis://h:port", "redis://me:secret@127.0.0.1:1", "me:secret@a:1,b:2",
	}
	for _, address := range addresses {
		_, err := Open(t.Context(), address)
		if err == nil {
			t.Errorf("%s: no error", address)
		} else if text := err.Error(); !strings.HasPrefix(text, "-redis: ") || strings.Contains(text, "sec") || strings.Contains(text, "\n") {
			t.Errorf("%s: %q", address, text)
		}
	}
}
