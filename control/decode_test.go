package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestALargeBodyIsReadAsASmallOne: what is large is not copied, and means the same.
func TestALargeBodyIsReadAsASmallOne(t *testing.T) {
	room := strings.Repeat(" ", largeBody)
	for about, text := range map[string]string{
		"one member":           `{"policy":"public"}`,
		"space about":          "{ \"policy\"\t:\n\"public\" , \"for\" : \"30s\" }",
		"every kind of value":  `{"a":1.5e3,"b":true,"c":null,"d":[1,[2,{"x":"]}"}]],"e":{"f":{"g":[]}},"h":""}`,
		"escapes":              `{"a\"\\":"\\\"}","\u0070olicy":"\\","b":"\\\\"}`,
		"a name twice":         `{"policy":"public","policy":"no-network"}`,
		"a name twice, spelt":  `{"policy":"public","p\u006flicy":"no-network"}`,
		"nothing in it":        `{}`,
		"space in it":          `{ }`,
		"a list":               `[1,2]`,
		"a string":             `"public"`,
		"no end":               `{"policy":"public"`,
		"a comma too many":     `{"policy":"public",}`,
		"no colon":             `{"policy" "public"}`,
		"something after it":   `{"policy":"public"}{}`,
		"a number for a name":  `{1:2}`,
		"an unfinished string": `{"a":"`,
	} {
		small, large := parseBody([]byte(text)), parseBody([]byte(room+text+room))
		if !slices.Equal(small.order, large.order) || !maps.EqualFunc(small.members, large.members, slices.Equal) {
			t.Errorf("%s: %s %v as a small body, %s %v as a large one", about, small.order, small.members, large.order, large.members)
		}
		if fmt.Sprint(small.problems) != fmt.Sprint(large.problems) {
			t.Errorf("%s: %v as a small body, %v as a large one", about, small.problems, large.problems)
		}
	}
}

// FuzzSharedMembers: whatever valid object is sent, both ways of reading it agree.
func FuzzSharedMembers(f *testing.F) {
	f.Add(`{"a":[1,{"b":"\\\""}],"c":null}`)
	f.Add(`{ "policy" : { "network_mode" : "allowlist" } , "for":"1s"}`)
	f.Fuzz(func(t *testing.T, text string) {
		whole := bytes.TrimSpace([]byte(text))
		if len(whole) == 0 || whole[0] != '{' || !json.Valid(whole) {
			return
		}
		read := parseBody(whole)
		shared := &body{members: map[string]json.RawMessage{}}
		shared.share(whole)
		if !slices.Equal(read.order, shared.order) || !maps.EqualFunc(read.members, shared.members, slices.Equal) {
			t.Errorf("%s and %s", read.members, shared.members)
		}
		if fmt.Sprint(read.problems) != fmt.Sprint(shared.problems) {
			t.Errorf("%v and %v", read.problems, shared.problems)
		}
	})
}
