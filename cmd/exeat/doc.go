// Command exeat is what a person or an orchestrator types: it checks and
// explains policies, and runs, attaches to and steers guarded sandboxes. The
// commands are in package cli below it, which the sidecar's image has as well.
//
//	exeat policy explain -f policy.json pypi.org 203.0.113.10:22
//
// Exit status: 0 yes or done, 1 a "no" (invalid, denied), 2 usage or unreadable
// input, 3 the sidecar cannot be reached. Results go to standard output, errors
// and warnings to standard error.
package main
