package policy

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxBrackets bounds the nesting of a TOML document before it is parsed: the
// parser recurses. Brackets in strings count too, which no sane file notices.
const maxBrackets = 10_000

// decodeTOML reads a TOML document into the same tree as JSON, so that the same
// validation judges both. The error is a Problem at the root.
func decodeTOML(data []byte) (value, []Problem) {
	fail := func(format string, args ...any) (value, []Problem) {
		return value{}, []Problem{{Message: fmt.Sprintf(format, args...)}}
	}
	if len(data) > maxDocument {
		return fail("the document is %d bytes long; at most 16 MiB (%d) are read", len(data), maxDocument)
	}
	depth := 0
	for _, c := range data {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if depth > maxBrackets {
			return fail("the document nests more than %d brackets", maxBrackets)
		}
	}
	var root map[string]any
	if err := toml.Unmarshal(data, &root); err != nil {
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			line, column := decode.Position()
			return fail("the document is not TOML: line %d, column %d: %s", line, column, strings.TrimPrefix(decode.Error(), "toml: "))
		}
		return fail("the document is not TOML: %s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	return tomlValue(root, tomlPhaseOrder(data), 0), nil
}

// tomlValue converts what the TOML decoder made. order ranks the names below
// phases; other members are sorted by name.
func tomlValue(v any, order map[string]int, depth int) value {
	switch t := v.(type) {
	case string:
		return value{kind: kindString, text: t}
	case bool:
		return value{kind: kindBool, text: strconv.FormatBool(t)}
	case int64:
		return value{kind: kindNumber, text: strconv.FormatInt(t, 10)}
	case float64:
		text := strconv.FormatFloat(t, 'g', -1, 64)
		if strings.Trim(text, "-0123456789") == "" {
			text += ".0" // it was written as one, and is not an integer
		}
		return value{kind: kindNumber, text: text}
	case []any:
		list := value{kind: kindArray, inner: &composite{}}
		for _, item := range t {
			list.inner.items = append(list.inner.items, tomlValue(item, nil, depth+1))
		}
		return list
	case map[string]any:
		object := value{kind: kindObject, inner: &composite{}}
		for name, item := range t {
			var inner map[string]int
			if depth == 0 && name == "phases" {
				inner = order
			}
			object.inner.members = append(object.inner.members, member{name: name, value: tomlValue(item, inner, depth+1)})
		}
		sort.Slice(object.inner.members, func(i, j int) bool {
			a, b := object.inner.members[i].name, object.inner.members[j].name
			if depth == 1 && order[a] != order[b] {
				return order[a] < order[b]
			}
			return a < b
		})
		return object
	}
	return value{kind: kindOther, text: fmt.Sprint(v)}
}

// tomlPhaseOrder ranks the names below the table phases by where they first
// stand: a phases document is read in order, and the decoder's maps lose it. The
// document has been decoded already, so that its syntax is good.
func tomlPhaseOrder(data []byte) map[string]int {
	order := make(map[string]int)
	note := func(path []string) {
		if len(path) < 2 || path[0] != "phases" {
			return
		}
		if _, known := order[path[1]]; !known {
			order[path[1]] = len(order)
		}
	}
	var parser unstable.Parser
	parser.Reset(data)
	var table []string
	for parser.NextExpression() {
		expression := parser.Expression()
		switch expression.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = tomlKey(nil, expression)
			note(table)
		case unstable.KeyValue:
			path := tomlKey(table, expression)
			note(path)
			if len(path) == 1 && expression.Value().Kind == unstable.InlineTable {
				for children := expression.Value().Children(); children.Next(); {
					note(tomlKey(path, children.Node()))
				}
			}
		default:
		}
	}
	return order
}

func tomlKey(prefix []string, node *unstable.Node) []string {
	path := append([]string(nil), prefix...)
	for key := node.Key(); key.Next(); {
		path = append(path, string(key.Node().Data))
	}
	return path
}
