package policy

import "errors"

// Source says where a phase's policy came from.
type Source string

// The sources of policy.md section 6.
const (
	SourceOverride  Source = "override"
	SourceTask      Source = "task"
	SourceRecipe    Source = "recipe"
	SourceFile      Source = "file"
	SourceInherited Source = "inherited"
	SourceDefault   Source = "default"
)

// Plan is a phases document, resolved. The names are unique.
type Plan struct {
	Phases []Phase `json:"phases"`
}

// Phase is one named policy of a plan.
type Phase struct {
	Name   string   `json:"name"`
	Policy Document `json:"policy"`
	Source Source   `json:"source"`
}

// PhasesSource is the text of one phases document. Name is that of its file: it
// stands in messages, and ".toml" or ".json" at its end decides the syntax.
type PhasesSource struct {
	Name string
	Data []byte
}

// PlanInput is what a plan is made from. File stands alone or beside Overrides;
// Task and Recipe are layers.
type PlanInput struct {
	File, Task, Recipe *PhasesSource
	// Overrides are by phase name, or by its key in spelling 3.
	Overrides map[string]Document
	// Fresh asks for a second sandbox for the evaluation.
	Fresh bool
}

// ReadPlan reads the documents and merges them. The error is an Errors where
// the documents are at fault.
func ReadPlan(in PlanInput) (Plan, []Problem, error) {
	return Plan{}, nil, errors.New("policy: not built yet")
}
