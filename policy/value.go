package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDocument is the size of the largest document that is read.
const maxDocument = 16 << 20

// maxDepth bounds nesting. No legal document is deeper than seven levels (a
// target's member, in a step's verifier's environment).
const maxDepth = 64

type valueKind uint8

const (
	kindNull valueKind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
	// kindOther is what TOML has and JSON has not: dates and times.
	kindOther
)

// value is a decoded JSON or TOML value. Members keep their order and their
// duplicates, and numbers keep their text, which encoding/json's own trees lose:
// 443.0 is not an integer, and the second "host" is an error.
type value struct {
	kind  valueKind
	text  string     // a string, or the text of a number, bool or date
	inner *composite // of a list or an object
}

// composite is what a list or an object holds, apart: there may be a million of
// values that are neither.
type composite struct {
	items   []value
	members []member
}

// items are those of a list.
func (v value) items() []value {
	if v.inner == nil {
		return nil
	}
	return v.inner.items
}

// members are those of an object.
func (v value) members() []member {
	if v.inner == nil {
		return nil
	}
	return v.inner.members
}

type member struct {
	name  string
	value value
}

// get returns the first member of that name.
func (v value) get(name string) (value, bool) {
	for _, m := range v.members() {
		if m.name == name {
			return m.value, true
		}
	}
	return value{}, false
}

// describe names the value in a message.
func (v value) describe() string {
	switch v.kind {
	case kindNull:
		return "null"
	case kindBool, kindNumber, kindOther:
		return show(v.text)
	case kindString:
		return "the string " + quote(v.text)
	case kindArray:
		return "a list"
	case kindObject:
		return "an object"
	}
	return "nothing"
}

// quote shows a value that somebody wrote, cut where it is absurdly long.
func quote(s string) string { return strconv.Quote(show(s)) }

func show(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// decodeJSON reads one JSON value and nothing after it. The error is a Problem
// at the root.
func decodeJSON(data []byte) (value, []Problem) {
	fail := func(format string, args ...any) (value, []Problem) {
		return value{}, []Problem{{Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case len(data) > maxDocument:
		return fail("the document is %d bytes long; at most 16 MiB (%d) are read", len(data), maxDocument)
	case len(bytes.TrimSpace(data)) == 0:
		return fail(`the document is empty; the shortest policy is "no-network" or "public", with the quotes`)
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return fail("the document begins with a byte order mark; save it as UTF-8 without one")
	case !utf8.Valid(data):
		return fail("the document is not valid UTF-8 at byte %d; save it as UTF-8", invalidUTF8(data))
	}
	// The scanner of encoding/json judges the syntax (with its bound on nesting)
	// before the tree is built, so that building it cannot meet a surprise.
	if !json.Valid(data) {
		var raw json.RawMessage
		return fail("%s", syntaxMessage(data, json.Unmarshal(data, &raw)))
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	v, err := readValue(decoder, 0)
	if err != nil {
		return fail("%s", syntaxMessage(data, err))
	}
	return v, nil
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

func syntaxMessage(data []byte, err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return "the document is not JSON: " + err.Error()
	}
	offset := min(int(syntax.Offset), len(data))
	before := data[:max(offset-1, 0)]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	if strings.Contains(syntax.Error(), "after top-level value") {
		return fmt.Sprintf("line %d, column %d: there is something after the end of the document; a file holds one policy", line, column)
	}
	if first := bytes.TrimSpace(data)[0]; first != '{' && first != '"' && first != '[' && isWord(data) {
		return fmt.Sprintf("the document is not JSON: write %s, with the quotes", strconv.Quote(string(bytes.TrimSpace(data))))
	}
	return fmt.Sprintf("the document is not JSON: line %d, column %d: %s", line, column, syntax.Error())
}

// isWord is true of a bare mode word, the likeliest thing to be written without
// its quotes.
func isWord(data []byte) bool {
	_, known := modeMeant(string(bytes.TrimSpace(data)))
	return known
}

func readValue(d *json.Decoder, depth int) (value, error) {
	if depth > maxDepth {
		return value{}, fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	switch t := token.(type) {
	case nil:
		return value{kind: kindNull}, nil
	case bool:
		return value{kind: kindBool, text: strconv.FormatBool(t)}, nil
	case json.Number:
		return value{kind: kindNumber, text: t.String()}, nil
	case string:
		return value{kind: kindString, text: t}, nil
	case json.Delim:
		if t == '[' {
			return readArray(d, depth)
		}
		return readObject(d, depth)
	}
	return value{}, fmt.Errorf("unexpected token %v", token)
}

func readArray(d *json.Decoder, depth int) (value, error) {
	v := value{kind: kindArray, inner: &composite{}}
	for d.More() {
		item, err := readValue(d, depth+1)
		if err != nil {
			return value{}, err
		}
		v.inner.items = append(v.inner.items, item)
	}
	_, err := d.Token()
	return v, err
}

func readObject(d *json.Decoder, depth int) (value, error) {
	v := value{kind: kindObject, inner: &composite{}}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return value{}, err
		}
		name, isString := key.(string)
		if !isString {
			return value{}, fmt.Errorf("unexpected key %v", key)
		}
		item, err := readValue(d, depth+1)
		if err != nil {
			return value{}, err
		}
		v.inner.members = append(v.inner.members, member{name: name, value: item})
	}
	_, err := d.Token()
	return v, err
}

// at joins a JSON path and a member's name.
func at(path, name string) string {
	for _, r := range name {
		plain := r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !plain {
			return path + "[" + quote(name) + "]"
		}
	}
	if name == "" {
		return path + `[""]`
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// atIndex joins a JSON path and the index of a list's item.
func atIndex(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
