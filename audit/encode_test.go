package audit

import (
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/policy"
)

// full has every member set.
func full(kind Kind) Event {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123_000, time.UTC)
	return Event{
		ID: 7, Time: at, Kind: kind, DecisionID: "k3f9w2-17", Verdict: policy.Allow, Reason: policy.ReasonRule,
		Rule: "*.example.test:443", Generation: 3, Phase: "run", Channel: ChannelTLS, Name: "a.example.test",
		Addr: netip.MustParseAddr("2001:db8::1"), Port: 443, Protocol: policy.UDP, QType: "AAAA", FlowID: "f1",
		BytesOut: 1, BytesIn: 2, Duration: 3 * time.Microsecond, Error: ErrorUnreachable, Message: "m", Revoked: 4,
		Folded: 5, Since: at.Add(-time.Second),
	}
}

func TestEventLine(t *testing.T) {
	tests := map[string]struct {
		event Event
		want  string
	}{
		"a denied DNS question": {
			Event{
				ID: 1, Time: time.Date(2026, 3, 1, 13, 0, 0, 5000, time.FixedZone("", 3600)), Kind: KindDecision,
				DecisionID: "abcdef-1", Channel: ChannelDNS, Name: "a.test", QType: "A", Reason: policy.ReasonUnlisted,
			},
			`{"id":1,"time":"2026-03-01T12:00:00.000005Z","kind":"decision","decision":"abcdef-1","verdict":"deny","reason":"unlisted","channel":"dns","name":"a.test","qtype":"A"}`,
		},
		"a flow without bytes says so": {
			Event{ID: 2, Kind: KindFlow, Verdict: policy.Allow, Addr: netip.MustParseAddr("192.0.2.1"), Port: 22},
			`{"id":2,"time":"0001-01-01T00:00:00.000000Z","kind":"flow","verdict":"allow","addr":"192.0.2.1","port":22,"protocol":"tcp","bytes_out":0,"bytes_in":0,"duration_us":0}`,
		},
		"an error has no verdict, so that it is never taken for a denial": {
			Event{ID: 3, Kind: KindError, Name: "a.test", Port: 443, Error: ErrorUnresolvable},
			`{"id":3,"time":"0001-01-01T00:00:00.000000Z","kind":"error","name":"a.test","port":443,"protocol":"tcp","error":"unresolvable"}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(tt.event)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestEventReadsBackWhatItWrote(t *testing.T) {
	for _, kind := range Kinds() {
		want := full(kind)
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Event
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		// what this kind does not carry
		if kind != KindDecision && kind != KindFlow {
			want.Verdict = policy.Deny
		}
		if kind != KindFlow {
			want.BytesOut, want.BytesIn = 0, 0
		}
		if kind != KindSwap {
			want.Revoked = 0
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s reads back as\n%+v, want\n%+v", kind, data, got, want)
		}
	}
}

func TestEveryFieldIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("fields.go")
	if err != nil {
		t.Fatal(err)
	}
	fields := regexp.MustCompile(`= "([a-z_]+)"`).FindAllStringSubmatch(string(source), -1)
	members := reflect.TypeFor[line]()
	if len(fields) != members.NumField() {
		t.Errorf("%d constants, and %d members are read", len(fields), members.NumField())
	}
	for i, f := range fields {
		if !regexp.MustCompile(`(?m)^//\t` + f[1] + ` `).Match(doc) {
			t.Errorf("%q is not in the table of doc.go", f[1])
		}
		if tag := members.Field(i).Tag.Get("json"); tag != f[1] {
			t.Errorf("member %d is written as %q and read as %q", i, f[1], tag)
		}
	}
	rows := regexp.MustCompile(`(?m)^//\t([a-z_]+) +(?:string|integer) `).FindAllStringSubmatch(string(doc), -1)
	if len(rows) != len(fields) {
		t.Errorf("the table has %d rows, there are %d fields", len(rows), len(fields))
	}
}

func TestHostileBytesAreEscaped(t *testing.T) {
	tests := map[string]struct{ in, name, message string }{
		"plain text stays":               {"pypi.org", "pypi.org", "pypi.org"},
		"an end of line":                 {"a\nb", `a\nb`, `a\nb`},
		"a terminal escape":              {"\x1b[2J", `\x1b[2J`, `\x1b[2J`},
		"a C1 control":                   {"\u009b2J", `\u009b2J`, `\u009b2J`},
		"bytes that are no UTF-8":        {"\xff\xfe", `\xff\xfe`, `\xff\xfe`},
		"text that runs backwards":       {"a\u202eb", `a\u202eb`, `a\u202eb`},
		"letters, in a message, are let": {"bücher", `b\u00fccher`, "bücher"},
		"a backslash is told apart":      {`a\x1b`, `a\\x1b`, `a\\x1b`},
		"NUL":                            {"a\x00", `a\x00`, `a\x00`},
		"a quotation mark":               {`a"b`, `a"b`, `a"b`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := Event{Name: tt.in, Message: tt.in}
			e.clean()
			if e.Name != tt.name || e.Message != tt.message {
				t.Errorf("name %q, message %q: want %q, %q", e.Name, e.Message, tt.name, tt.message)
			}
		})
	}
}

func TestALongNameIsCut(t *testing.T) {
	e := Event{Name: strings.Repeat("a", 1000), Message: strings.Repeat("\x00", 10_000)}
	e.clean()
	if len(e.Name) > maxName || len(e.Message) > maxMessage || !strings.HasSuffix(e.Name, "a...") {
		t.Errorf("name of %d, message of %d bytes", len(e.Name), len(e.Message))
	}
}

func FuzzEventIsOneSafeLine(f *testing.F) {
	f.Add("a.test", "rule", "message")
	f.Add("\x1b]0;x\x07\n{\"id\":1}", "\u2028", "\xff\\")
	f.Fuzz(func(t *testing.T, name, word, message string) {
		e := Event{Kind: KindDecision, Name: name, Rule: word, QType: word, Phase: word, Error: word, Message: message}
		e.clean()
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(string(data), "\n\r\x1b\x00\u2028\u202e") {
			t.Errorf("unsafe line %q", data)
		}
		if len(data) > 16<<10 {
			t.Errorf("a line of %d bytes", len(data))
		}
		var back Event
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if back.Name != e.Name || back.Message != e.Message {
			t.Errorf("%s reads back as %q, %q", data, back.Name, back.Message)
		}
		again := e
		again.clean()
		if isPlainText(e.Name) && again.Name != e.Name {
			t.Errorf("clean is not stable for %q", e.Name)
		}
	})
}
