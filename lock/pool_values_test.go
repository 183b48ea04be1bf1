package lock

import (
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// Values, owners and notes are data, whatever their bytes.
func TestPoolTakesAnyBytes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		values := []string{
			"\x00", "a\x00b", "|", "a|b", "||", " ", " a b ", "%", "%7C", "{}", "~", "\n\r\t", "ключ", "Ελληνικά", "🔑",
			"\xff\xfe", "-1", "1", "t:x", "h:x|y.1.1|o|", "f", strings.Repeat("x", 10_000), strings.Repeat("| ", 5_000), "\u2028", "\u00a0",
		}
		for _, note := range []string{"", "a|b", "|", "\x00|\xff", "b:|"} {
			l := newLocker(t, s.Client(t), owner("own|er\x00 "+note))
			p := somePool(t, l, Note(note))
			putAll(t, p, values...)
			if n, err := p.Put(t.Context(), values...); n != 0 || err != nil {
				t.Errorf("Put again: %d, %v", n, err)
			}
			var leases []*Lease
			for _, value := range values {
				leases = append(leases, takesQuietly(t, p, value))
			}
			poolAudit(t, p)
			info := inspects(t, p)
			got := map[string]bool{}
			for _, h := range info.Holders {
				got[h.Value] = true
				if h.Note != note || h.Owner != "own|er\x00 "+note {
					t.Errorf("holder: %+v", h)
				}
			}
			if len(info.Holders) != len(values) || len(got) != len(values) {
				t.Errorf("%d holders with %d values, want %d", len(info.Holders), len(got), len(values))
			}
			// Through a message as well.
			w := takeBeside(t, p, 1)
			givesBack(t, leases[0])
			if le := w.got(t); le.Value() != values[0] {
				t.Errorf("granted %q, want %q", le.Value(), values[0])
			} else {
				givesBack(t, le)
			}
			for _, le := range leases[1:] {
				givesBack(t, le)
			}
			poolAudit(t, p)
			for _, value := range values {
				consumes(t, takesQuietly(t, p, value))
			}
			poolAudit(t, p)
		}
	})
}
