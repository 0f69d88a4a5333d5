// Package probe is the catalogue of the ways round an egress sandbox, and what
// tries them. Each row has a number (B01…B79), the attack, the defence and the
// tests that hold it; the cases are the rows that can be tried from inside a
// sandbox, with whatever capabilities the sandbox has. A case is held, a leak, or
// not proven: silence where no answer could have come proves nothing.
//
//	report, err := probe.Run(ctx, probe.Options{Safe: true})
//	for _, f := range report.Cases { fmt.Println(f.ID, f.Attack, f.Verdict) }
package probe
