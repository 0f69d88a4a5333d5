package policy

import "errors"

// Notice is the text that tells an agent what it may reach (policy.md section
// 7). An empty template is the default text; public has no notice.
func Notice(d Document, template string) (string, error) {
	return "", errors.New("policy: not built yet")
}
