package claim

import "testing"

func TestHas(t *testing.T) {
	t.Parallel()
	key := "automutex:{reindex|7}"
	id := ID(key, "n.1")
	for _, other := range []string{"automutex:{reindex|77}", "automutex:{reindex|7", "other:{reindex|7}", ""} {
		if Has(id, other) && other != "" {
			t.Errorf("%q is taken for a claim of %q", id, other)
		}
	}
	if !Has(id, key) || Has(key, key) || Has("8a1c", key) {
		t.Error("the claim of a key is not told from others")
	}
	if !HasAny(id, "automutex") || HasAny(id, "auto") || HasAny(key, "automutex") || HasAny("automutex", "automutex") || HasAny("8a1c", "automutex") {
		t.Error("claims of a prefix are not told from others")
	}
}
