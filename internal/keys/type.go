package keys

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/automutex/automutex/internal/nearest"
)

// CheckType reports a path that leads to no field of the JSON of payload's type. It follows encoding/json, except
// that names are compared exactly, since a key is made from the JSON. It looks into no interface, and no type that
// unmarshals itself. The error's text continues a sentence that begins with the path.
func CheckType(payload any, segments []string) error {
	t := reflect.TypeOf(payload)
	for _, segment := range segments {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		p := reflect.PointerTo(t)
		if t.Kind() == reflect.Interface || p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
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
	if fields[segment].t == nil {
		names = nearest.Names(segment, names)
		return nil, fmt.Sprintf(`has no JSON field %q; did you mean "%s"?`, segment, strings.Join(names[:min(len(names), 3)], `", "`))
	}
	for _, name := range names {
		if name != segment && strings.EqualFold(name, segment) {
			return nil, fmt.Sprintf("has the JSON fields %q and %q, which differ in letter case alone; a payload with both has no key, so rename one", segment, name)
		}
	}
	return fields[segment].t, ""
}

// jsonFields gives the fields that encoding/json reads into a struct. Of fields with
// one name the least deeply embedded one counts, then the tagged one; when that leaves several, none does.
func jsonFields(t reflect.Type) map[string]jsonField {
	all := map[string]jsonField{}
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
					all[name] = jsonField{field.Type, tagged, depth, 1}
				}
			}
		}
		level = slices.DeleteFunc(embedded, func(s reflect.Type) bool { return seen[s] })
	}
	maps.DeleteFunc(all, func(_ string, f jsonField) bool { return f.count > 1 })
	return all
}

type jsonField struct {
	t            reflect.Type
	tagged       bool
	depth, count int // how many structs are around it, and how many fields there have the name
}

// jsonName gives the name of a field in JSON, "" for one that encoding/json leaves out, and whether a tag gave it.
func jsonName(field reflect.StructField) (name string, tagged bool) {
	tag := field.Tag.Get("json")
	if name, _, _ = strings.Cut(tag, ","); name == "" || !field.IsExported() {
		return field.Name, name != ""
	}
	// What becomes of a quote in it differs between versions of Go.
	one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: field.Name, Type: reflect.TypeFor[bool](), Tag: field.Tag}})).Elem()
	one.Field(0).SetBool(true) // past omitempty
	var all map[string]any
	if text, err := json.Marshal(one.Interface()); err == nil && json.Unmarshal(text, &all) == nil {
		for key := range all {
			return key, key != field.Name || key == name
		}
	}
	return "", false
}
