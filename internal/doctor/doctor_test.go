package doctor

import "testing"

// What a server of another kind would say.
func TestVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"6.0.16": Bad, "5.0": Bad, "6.1.240": Bad, "x": Bad, "6.2.0": Fine, "6.2": Fine, "7.0.15": Fine, "10.0.1": Fine, "7": Fine, "": Note,
	} {
		d := &doctor{}
		d.version(&node{info: map[string]string{"redis_version": version}}, 0)
		if d.findings[0].Level != want {
			t.Errorf("%q: %+v, want %s", version, d.findings, want)
		}
	}
}
