package keys

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/automutex/automutex/internal/nearest"
)

// CheckType reports a path that leads to no field of the JSON of payload's type. It follows encoding/json, except that
// names are compared exactly, since a key is made from the JSON. It looks into no interface, and no type that
// unmarshals itself. The error's text continues a sentence that begins with the path.
func CheckType(payload any, segments []string) error {
	t := reflect.TypeOf(payload)
	for _, segment := range segments {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		p := reflect.PointerTo(t)
		if t.Kind() == reflect.Interface || p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
			p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			return nil
		}
		next, problem := typeStep(t, segment)
		if next == nil {
			return fmt.Errorf("is not in the JSON of %T: %s %s", payload, t, problem)
		}
		t = next
	}
	return nil
}

// typeStep returns the type that one segment leads to, or nil and the reason.
func typeStep(t reflect.Type, segment string) (next reflect.Type, problem string) {
	index := listIndex(segment)
	switch t.Kind() {
	case reflect.Struct:
		return fieldStep(t, segment)
	case reflect.Map:
		return t.Elem(), ""
	case reflect.Slice, reflect.Array:
		switch {
		case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
			return nil, "is a string in JSON, and so has no fields; end the path before it"
		case index < 0:
			return nil, fmt.Sprintf("is a list, and %q is no index; name an element, such as 0", segment)
		case t.Kind() == reflect.Array && index >= t.Len():
			return nil, fmt.Sprintf("has no element %d; name one below %d", index, t.Len())
		}
		return t.Elem(), ""
	}
	return nil, fmt.Sprintf("has no fields, and so no %q; end the path before it", segment)
}

func fieldStep(t reflect.Type, segment string) (next reflect.Type, problem string) {
	fields := jsonFields(t)
	if len(fields) == 0 {
		return nil, "has no JSON fields; leave the path out, or Payload"
	}
	names := slices.Sorted(maps.Keys(fields))
	if fields[segment].Type == nil {
		names = nearest.Names(segment, names)
		return nil, fmt.Sprintf(`has no JSON field %q; did you mean "%s"?`, segment,
			strings.Join(names[:min(len(names), 3)], `", "`))
	}
	for _, name := range names {
		if name != segment && strings.EqualFold(name, segment) {
			return nil, fmt.Sprintf("has the JSON fields %q and %q, which differ in letter case alone; a payload with both "+
				"has no key, so rename one", segment, name)
		}
	}
	return fields[segment].Type, ""
}

// jsonFields gives the fields that encoding/json reads into a struct. Of fields with one name the least deeply embedded
// one counts, then the tagged one. A field that another of its name in Go hides is left out, whatever its name in JSON.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	var within []int // the index of an embedded struct with a name in JSON: what is in it is none of t
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		of := f.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		inside := len(within) > 0 && len(f.Index) > len(within) && slices.Equal(f.Index[:len(within)], within)
		if inside || !f.IsExported() || tag == "-" || f.Anonymous && name == "" && of.Kind() == reflect.Struct {
			continue
		}
		tagged := name != ""
		if f.Anonymous {
			within = f.Index
		}
		name = cmp.Or(name, f.Name)
		if known, is := fields[name]; !is || len(f.Index) < len(known.Index) || len(f.Index) == len(known.Index) && tagged {
			fields[name] = f
		}
	}
	return fields
}
