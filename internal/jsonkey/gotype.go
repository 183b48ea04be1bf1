package jsonkey

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/automutex/automutex/internal/nearest"
)

// CheckType reports a path that leads to no field of the JSON of payload's type. It
// follows encoding/json, except that names are compared exactly, since a key is made
// from the JSON and not from the decoded value. It does not look into an interface, or
// into a type with an UnmarshalJSON or UnmarshalText method. The error's text
// continues a sentence that begins with the path.
func CheckType(payload any, segments []string) error {
	t := reflect.TypeOf(payload)
	for _, segment := range segments {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Interface || decodesItself(t) {
			return nil
		}
		next, problem := payloadStep(t, segment)
		if next == nil {
			return fmt.Errorf("is not in the JSON of %T: %s %s", payload, t, problem)
		}
		t = next
	}
	return nil
}

// payloadStep returns the type that one segment leads to, or nil and the reason.
func payloadStep(t reflect.Type, segment string) (next reflect.Type, problem string) {
	switch t.Kind() {
	case reflect.Struct:
		fields := jsonFields(t)
		if next, ok := fields[segment]; ok {
			return next, ""
		}
		if len(fields) == 0 {
			return nil, "has no JSON fields; leave the path out, or Payload"
		}
		return nil, fmt.Sprintf("has no JSON field %q; did you mean %s?", segment, nearestNames(fields, segment))
	case reflect.Map:
		return t.Elem(), ""
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return nil, "is a string in JSON, and so has no fields; end the path before it"
		}
		index := listIndex(segment)
		if index < 0 {
			return nil, fmt.Sprintf("is a list, and %q is no index; name an element, such as 0", segment)
		}
		if t.Kind() == reflect.Array && index >= t.Len() {
			return nil, fmt.Sprintf("has no element %d; name one below %d", index, t.Len())
		}
		return t.Elem(), ""
	}
	return nil, fmt.Sprintf("has no fields, and so no %q; end the path before it", segment)
}

func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// jsonFields gives the fields that encoding/json reads into a struct, with
// those of embedded structs. Of fields with one name the least deeply embedded
// one counts, then the tagged one; when that leaves several, none does.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	type found struct {
		t      reflect.Type
		depth  int
		tagged bool
		count  int
	}
	all := map[string]found{}
	note := func(name string, f found) {
		old, ok := all[name]
		switch {
		case !ok || f.depth == old.depth && f.tagged && !old.tagged:
			f.count = 1
			all[name] = f
		case f.depth == old.depth && f.tagged == old.tagged:
			old.count++
			all[name] = old
		}
	}

	level, seen := []reflect.Type{t}, map[reflect.Type]bool{}
	for depth := 0; len(level) > 0; depth++ {
		var embedded []reflect.Type
		for _, s := range level {
			seen[s] = true
			for i := range s.NumField() {
				field := s.Field(i)
				name, tagged, ok := jsonName(field)
				if !ok {
					continue
				}
				ft := field.Type
				if ft.Kind() == reflect.Pointer {
					ft = ft.Elem()
				}
				if field.Anonymous && !tagged && ft.Kind() == reflect.Struct {
					embedded = append(embedded, ft)
				} else if field.IsExported() {
					note(name, found{t: field.Type, depth: depth, tagged: tagged})
				}
			}
		}
		level = slices.DeleteFunc(embedded, func(s reflect.Type) bool { return seen[s] })
	}

	fields := map[string]reflect.Type{}
	for name, f := range all {
		if f.count == 1 {
			fields[name] = f.t
		}
	}
	return fields
}

// jsonName gives the name of a field in JSON, and whether a tag gave it; not
// ok means that encoding/json leaves the field out.
func jsonName(field reflect.StructField) (name string, tagged, ok bool) {
	tag := field.Tag.Get("json")
	if tag == "-" {
		return "", false, false
	}
	name, _, _ = strings.Cut(tag, ",")
	if name == "" {
		return field.Name, false, true
	}
	unfit := func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	if strings.ContainsFunc(name, unfit) {
		return unfitName(field)
	}
	return name, true, true
}

// unfitName is jsonName for a tag with a name that encoding/json does not take as it
// is. Versions of Go differ in what they make of it, so a field with that tag is
// written, and its name read.
func unfitName(field reflect.StructField) (name string, tagged, ok bool) {
	const untagged = "Untagged"
	value := reflect.New(reflect.StructOf([]reflect.StructField{{Name: untagged, Type: reflect.TypeFor[int](), Tag: field.Tag}}))
	value.Elem().Field(0).SetInt(1) // a zero may be left out
	text, err := json.Marshal(value.Interface())
	if err != nil {
		return field.Name, false, true
	}
	var written map[string]json.RawMessage
	if err := json.Unmarshal(text, &written); err != nil {
		return field.Name, false, true
	}
	for name := range written {
		if name != untagged {
			return name, true, true
		}
	}
	return field.Name, false, true
}

// nearestNames gives up to three names that look most like what was asked for.
func nearestNames(fields map[string]reflect.Type, wanted string) string {
	names := nearest.Names(wanted, slices.Sorted(maps.Keys(fields)))
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names[:min(len(names), 3)], ", ")
}
