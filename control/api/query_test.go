package api

import (
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestParseEventQuery(t *testing.T) {
	deny := policy.Deny
	tests := map[string]struct {
		query    string
		want     EventQuery
		problems []string // paths
	}{
		"nothing is everything":       {query: ""},
		"an ID":                       {query: "since=42&follow=1", want: EventQuery{After: 42, Follow: true}},
		"a time":                      {query: "since=2026-03-01T11:00:00Z", want: EventQuery{Since: now.Add(-time.Hour)}},
		"how long ago":                {query: "since=10m", want: EventQuery{Since: now.Add(-10 * time.Minute)}},
		"from now on":                 {query: "since=0s&follow=true", want: EventQuery{Since: now, Follow: true}},
		"both an ID and a time":       {query: "since=42&since=1h", want: EventQuery{After: 42, Since: now.Add(-time.Hour)}},
		"a verdict":                   {query: "verdict=deny", want: EventQuery{Verdict: &deny}},
		"several reasons":             {query: "reason=denied&reason=mode", want: EventQuery{Reasons: []policy.Reason{"denied", "mode"}}},
		"several kinds":               {query: "kind=swap&kind=lease", want: EventQuery{Kinds: []audit.Kind{"swap", "lease"}}},
		"names are compared in lower": {query: "name=PyPI.org.", want: EventQuery{Name: "pypi.org"}},
		"every problem is told": {
			query:    "follow=perhaps&verdict=maybe&reason=because&kind=kind&name=&since=-1h&sinse=1&verdict=deny",
			problems: []string{"follow", "kind", "name", "reason", "since", "sinse", "verdict"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			values, err := url.ParseQuery(tt.query)
			if err != nil {
				t.Fatal(err)
			}
			got, problems := ParseEventQuery(values, now)
			var paths []string
			for _, p := range problems {
				paths = append(paths, p.Path)
			}
			if !reflect.DeepEqual(paths, tt.problems) {
				t.Fatalf("problems %v, want %v", problems, tt.problems)
			}
			if len(problems) == 0 && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	deny, allow := policy.Deny, policy.Allow
	event := audit.Event{
		Kind: audit.KindDecision, Time: now, Name: "a.example.org", Reason: policy.ReasonUnlisted, Verdict: policy.Deny,
	}
	failure := audit.Event{Kind: audit.KindError, Time: now}
	tests := map[string]struct {
		query EventQuery
		event audit.Event
		want  bool
	}{
		"nothing asked":               {EventQuery{}, event, true},
		"the verdict":                 {EventQuery{Verdict: &deny}, event, true},
		"another verdict":             {EventQuery{Verdict: &allow}, event, false},
		"a failure is no denial":      {EventQuery{Verdict: &deny}, failure, false},
		"the name":                    {EventQuery{Name: "a.example.org"}, event, true},
		"another name":                {EventQuery{Name: "example.org"}, event, false},
		"below a name":                {EventQuery{Name: "*.example.org"}, event, true},
		"a name is not below itself":  {EventQuery{Name: "*.a.example.org"}, event, false},
		"the reason":                  {EventQuery{Reasons: []policy.Reason{"denied", "unlisted"}}, event, true},
		"another reason":              {EventQuery{Reasons: []policy.Reason{"denied"}}, event, false},
		"another kind":                {EventQuery{Kinds: []audit.Kind{audit.KindSwap}}, event, false},
		"before":                      {EventQuery{Since: now.Add(1)}, event, false},
		"what was lost is always let": {EventQuery{Verdict: &deny, Name: "x"}, audit.Event{Kind: audit.KindLost}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.query.Matches(&tt.event); got != tt.want {
				t.Errorf("matches: %v, want %v", got, tt.want)
			}
		})
	}
}

func FuzzEventQuery(f *testing.F) {
	for _, seed := range []string{"", "follow=1&since=42&since=1h&verdict=deny&reason=mode&kind=flow&name=*.a.org", "since=2026-03-01T11:00:00.5Z", "x=%zz", "name=.."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		values, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		query, problems := ParseEventQuery(values, now)
		if len(problems) > 0 {
			return
		}
		again, problems := ParseEventQuery(query.Values(), now)
		if len(problems) > 0 {
			t.Fatalf("%q writes itself as %q, which has %v", raw, query.Values().Encode(), problems)
		}
		if !query.Since.Equal(again.Since) {
			t.Fatalf("%q: since %v reads back as %v", raw, query.Since, again.Since)
		}
		query.Since, again.Since = time.Time{}, time.Time{}
		if !reflect.DeepEqual(query, again) {
			t.Fatalf("%q: %+v reads back as %+v", raw, query, again)
		}
	})
}
