// Package compose puts every service of a Compose project behind one sidecar, or
// behind one each. It reads what the services are and writes an override file that
// Compose merges onto theirs; what cannot be put behind a sidecar is a problem,
// never left out.
//
//	project, err := compose.Load(ctx, []string{"compose.yaml"})
//	plan, err := compose.Make(project, compose.Options{Sidecar: []string{"--allow", "pypi.org"}})
//	text, err := plan.Override()
package compose
