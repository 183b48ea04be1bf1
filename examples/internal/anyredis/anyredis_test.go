package anyredis

import (
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// An error is one line that tells no password.
func TestOpen_refuses(t *testing.T) {
	t.Parallel()
	addresses := []string{
		"localhost", ":1", "127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "me:secret@localhost:6379", "http://secret@x",
		"redis://me:sec#ret@h:1", "redis://h:1/secret", "redis://h:port", "redis://me:secret@127.0.0.1:1",
		"me:secret@a:1,b:2",
	}
	for _, address := range addresses {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			_, err := Open(t.Context(), address)
			if err == nil {
				t.Error("no error")
			} else if text := err.Error(); !strings.HasPrefix(text, "-redis: ") || strings.Contains(text, "sec") ||
				strings.Contains(text, "\n") {
				t.Errorf("%q", text)
			}
		})
	}
}
