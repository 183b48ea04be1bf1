package demo

import "testing"

func TestEntityOf(t *testing.T) {
	tests := []struct {
		payload string
		on      []string
		want    string
		ok      bool
	}{
		{`{"repository":{"full_name":"octo/hello"}}`, []string{"repository.full_name"}, "octo/hello", true},
		{`{"a":"x","b":{"c":["y","z"]}}`, []string{"a", "b.c.1"}, "x | z", true},
		{`{"a.b":"dotted","a":{"b":"nested"}}`, []string{`a\.b`}, "dotted", true},
		{`{"a.b":"dotted","a":{"b":"nested"}}`, []string{`a.b`}, "nested", true},
		{`{"id":7}`, []string{"id"}, "7", true},
		{`{"id":"7"}`, []string{"id"}, "7", true},
		{`{"id":7.0}`, []string{"id"}, "7", true},
		{`{"id":12345678901234567891}`, []string{"id"}, "12345678901234567891", true},
		{`{"id":1.5}`, []string{"id"}, "1.5", true},
		{`{"id":false}`, []string{"id"}, "false", true},
		{`{"id":{"b":1,"a":2}}`, []string{"id"}, `{"a":2,"b":1}`, true},
		{`anything`, nil, "(all)", true},
		{`{"id":null}`, []string{"id"}, "", false},
		{`{"id":""}`, []string{"id"}, "", false},
		{`{"id":"x"}`, []string{"id", "other"}, "", false},
		{`{"id":"x"}`, []string{"id.deeper"}, "", false},
		{`{"ids":[1]}`, []string{"ids.1"}, "", false},
		{`{"ids":[1]}`, []string{"ids.-1"}, "", false},
		{`[]`, []string{"id"}, "", false},
		{`not json`, []string{"id"}, "", false},
		{``, []string{"id"}, "", false},
	}
	for _, test := range tests {
		got, ok := entityOf([]byte(test.payload), test.on)
		if got != test.want || ok != test.ok {
			t.Errorf("entityOf(%s, %q) = %q, %t; want %q, %t", test.payload, test.on, got, ok, test.want, test.ok)
		}
	}
}
