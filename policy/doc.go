// Package policy is the language that says what a sandbox may reach: it parses
// policy documents, compiles them, and decides requests. It imports nothing of
// ours, so that the enforcement points, the control API and the offline commands
// all share one grammar, one name normaliser and one decision function.
//
//	doc, warnings, err := policy.Parse(data)
//	compiled := policy.Compile(doc, policy.Options{Generation: 1})
//	decision := compiled.Decide(policy.Request{Name: "pypi.org", Port: 443})
package policy
