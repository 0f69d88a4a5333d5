package policy

import "errors"

// CheckProvider says which parts of d the named provider would not hold, and
// why. The error is an unknown provider.
func CheckProvider(d Document, provider string) ([]Problem, error) {
	return nil, errors.New("policy: not built yet")
}

// Providers are the names of the provider table, sorted.
func Providers() []string { return nil }
