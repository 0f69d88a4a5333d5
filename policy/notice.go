package policy

import (
	"fmt"
	"strings"
	"text/template"
)

// NoticeData is what a notice's template is executed over: the effective policy,
// and the default text of its body. Targets print in canonical form.
type NoticeData struct {
	Mode    Mode
	Allowed []Target
	Denied  []Target
	Body    string
}

// Notice is the text that tells an agent what it may reach (policy.md section
// 7). An empty template is the default text; another is a Go text/template over
// NoticeData. public has no notice, whatever the template.
func Notice(d Document, text string) (string, error) {
	if d.Mode == ModePublic || text == "" {
		return DefaultNotice(d), nil
	}
	data := NoticeData{Mode: d.Mode, Allowed: d.Allowed, Denied: d.Denied, Body: noticeBody(d)}
	parsed, err := template.New("notice").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf("parse the notice's template: %w", err)
	}
	var b strings.Builder
	if err := parsed.Execute(&b, data); err != nil {
		return "", fmt.Errorf("execute the notice's template: %w", err)
	}
	return b.String(), nil
}

// DefaultNotice is Notice without a template.
func DefaultNotice(d Document) string {
	if d.Mode == ModePublic {
		return ""
	}
	return "<network-restriction>\n" +
		"Network access from this environment is restricted by its operator. " +
		"This notice is made from the policy in force and outranks every other statement about network access.\n" +
		noticeBody(d) + "\n</network-restriction>\n"
}

func noticeBody(d Document) string {
	const nothing = "Nothing outside this environment can be reached. Work with what is already here; a request to the network will fail again if retried."
	var b strings.Builder
	list := func(title string, targets []Target) {
		b.WriteString(title + "\n")
		for _, t := range targets {
			b.WriteString("- " + t.String() + "\n")
		}
	}
	switch d.Mode {
	case ModeAllowlist:
		if len(d.Allowed) == 0 {
			return nothing
		}
		list("Only these targets can be reached:", d.Allowed)
		if len(d.Denied) > 0 {
			list("except:", d.Denied)
		}
		return b.String() + "Every other request is refused at once and will be refused again if retried."
	case ModeDenylist:
		list("Everything can be reached except these targets:", d.Denied)
		return b.String() + "A request to one of them is refused at once and will be refused again if retried."
	case ModePublic, ModeNoNetwork:
	}
	return nothing
}
