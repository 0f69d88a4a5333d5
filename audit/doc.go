// Package audit records what was decided: one Event a decision, written as JSON
// lines, kept in a bounded ring for subscribers, and counted by target.
package audit
