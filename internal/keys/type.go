package keys

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

// CheckType reports a path that leads to no field of the JSON of payload's type. It follows
// encoding/json, except that names are compared exactly, since a key is made from the JSON and
// not from the decoded value. It does not look into an interface, or into a type with an
// UnmarshalJSON or UnmarshalText method. The error's text continues a sentence that begins with
// the path.
func CheckType(payload any, segments []string) error {
	t := reflect.TypeOf(payload)
	for _, segment := range segments {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Interface || decodesItself(t) {
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

func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// typeStep returns the type that one segment leads to, or nil and the reason.
func typeStep(t reflect.Type, segment string) (next reflect.Type, problem string) {
	switch t.Kind() {
	case reflect.Struct:
		return fieldStep(t, segment)
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

func fieldStep(t reflect.Type, segment string) (next reflect.Type, problem string) {
	fields := jsonFields(t)
	if len(fields) == 0 {
		return nil, "has no JSON fields; leave the path out, or Payload"
	}
	names := slices.Sorted(maps.Keys(fields))
	next, ok := fields[segment]
	if !ok {
		names = nearest.Names(segment, names)
		return nil, fmt.Sprintf(`has no JSON field %q; did you mean "%s"?`, segment, strings.Join(names[:min(len(names), 3)], `", "`))
	}
	for _, name := range names {
		if name != segment && strings.EqualFold(name, segment) {
			return nil, fmt.Sprintf("has the JSON fields %q and %q, which differ in letter case alone; a payload with both has no key, so rename one", segment, name)
		}
	}
	return next, ""
}

// jsonFields gives the fields that encoding/json reads into a struct, with those of embedded
// structs. Of fields with one name the least deeply embedded one counts, then the tagged one;
// when that leaves several, none does.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	type found struct {
		t      reflect.Type
		depth  int
		tagged bool
		count  int
	}
	all := map[string]found{}
	level, seen := []reflect.Type{t}, map[reflect.Type]bool{}
	for depth := 0; len(level) > 0; depth++ {
		var embedded []reflect.Type
		for _, s := range level {
			seen[s] = true
			for i := range s.NumField() {
				field := s.Field(i)
				name, tagged := jsonName(field)
				ft := field.Type
				if ft.Kind() == reflect.Pointer {
					ft = ft.Elem()
				}
				switch old, known := all[name]; {
				case name == "":
				case field.Anonymous && !tagged && ft.Kind() == reflect.Struct:
					embedded = append(embedded, ft)
				case !field.IsExported() || known && old.depth < depth || known && old.tagged && !tagged:
				case known && old.tagged == tagged:
					old.count++
					all[name] = old
				default:
					all[name] = found{t: field.Type, depth: depth, tagged: tagged, count: 1}
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

// jsonName gives the name of a field in JSON, "" for one that encoding/json leaves out, and
// whether a tag gave it.
func jsonName(field reflect.StructField) (name string, tagged bool) {
	tag := field.Tag.Get("json")
	if tag == "-" {
		return "", false
	}
	name, _, _ = strings.Cut(tag, ",")
	if name == "" || strings.ContainsFunc(name, isUnfit) {
		return field.Name, false
	}
	return name, true
}

// isUnfit: a name with the character is none to encoding/json.
func isUnfit(r rune) bool {
	return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
}
