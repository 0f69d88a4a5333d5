// Package policy is the language that says what a sandbox may reach: it parses
// policy documents, compiles them, and decides requests. It imports nothing of
// ours, so that the enforcement points, the control API and the offline commands
// all share one grammar, one name normaliser and one decision function.
//
//	doc, warnings, err := policy.Parse(data)
//	compiled := policy.Compile(doc, policy.Options{Generation: 1})
//	decision := compiled.Decide(policy.Request{Name: "pypi.org", Port: 443})
//
// # Cost
//
// Deciding does not allocate, and costs a map access per label of a name or per
// prefix length in use, whatever the number of targets. Measured with
//
//	go test ./policy -run '^$' -bench .
//
// on 2 cores of an AMD EPYC, Go 1.26, linux/amd64, beside other work (best of
// four; a quarter each of names with a port, wildcards, IPv4 addresses and IPv6
// ranges):
//
//	targets                     10      1,000     100,000
//	Parse                    33 µs     2.2 ms      217 ms   (72 MB allocated on the way)
//	Compile                   7 µs     1.1 ms      183 ms   (35 MB)
//	Decide, name allowed    195 ns     519 ns      401 ns
//	Decide, name unlisted   744 ns     831 ns      896 ns   (six labels)
//	Decide, IPv4 allowed    295 ns     200 ns      250 ns
//	Decide, IPv6 unlisted   225 ns     203 ns      404 ns
//	Decide, DNS question    231 ns     323 ns      196 ns
//
// A document of 100,000 targets and its compiled form hold about 30 MB.
package policy
