package audit

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what one event may hold, so that no sandbox can make a line long.
const (
	maxName    = 255  // RFC 1035 section 2.3.4
	maxWord    = 128  // fixed words, ids, phases
	maxRule    = 320  // a name with its port, protocol and "floor:"
	maxMessage = 4096 // sentences
)

// clean makes every string of e safe to print: what a terminal would act on, or
// what would break a line, is escaped (bypass.md B40).
func (e *Event) clean() {
	e.Name = cleanText(e.Name, maxName, isPlain)
	e.QType = cleanText(e.QType, maxWord, isPlain)
	e.FlowID = cleanText(e.FlowID, maxWord, isPlain)
	e.DecisionID = cleanText(e.DecisionID, maxWord, isPlain)
	e.Error = cleanText(e.Error, maxWord, isPlain)
	e.Rule = cleanText(e.Rule, maxRule, isPlain)
	e.Phase = cleanText(e.Phase, maxWord, unicode.IsPrint)
	e.Message = cleanText(e.Message, maxMessage, unicode.IsPrint)
}

// isPlain is printable ASCII.
func isPlain(r rune) bool { return r >= ' ' && r <= '~' }

// cleanText escapes what keep does not keep, and cuts at limit bytes. A text of
// printable ASCII comes back as it is, without an allocation.
func cleanText(s string, limit int, keep func(rune) bool) string {
	if len(s) <= limit && isPlainText(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		piece := s[i : i+size]
		switch {
		case r == utf8.RuneError && size == 1:
			piece = `\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:]
		case r == '\\':
			piece = `\\`
		case !keep(r):
			quoted := strconv.QuoteRuneToASCII(r)
			piece = quoted[1 : len(quoted)-1]
		}
		if b.Len()+len(piece) > limit-len("...") {
			b.WriteString("...")
			break
		}
		b.WriteString(piece)
		i += size
	}
	return b.String()
}

func isPlainText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}
