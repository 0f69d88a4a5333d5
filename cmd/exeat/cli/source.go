package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/exeat/exeat/policy"
)

// maxDocument is one byte more than a policy document may have: enough for
// package policy to see that a document is too long, without reading on.
const maxDocument = 16<<20 + 1

// readInput reads FILE, or standard input where name is "-".
func (s *streams) readInput(name string) ([]byte, error) {
	if name == "-" {
		if s.inUsed {
			return nil, usagef("standard input can be read only once")
		}
		s.inUsed = true
		return readDocument(title(name), s.in)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readDocument(name, f)
}

// title is what complaints call FILE or "-".
func title(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// readDocument reads at most what policy needs to refuse the rest.
func readDocument(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// readPolicy reads the policy document in FILE or "-". Its warnings are left to
// `policy check`.
func (s *streams) readPolicy(name string) (policy.Document, error) {
	data, err := s.readInput(name)
	if err != nil {
		return policy.Document{}, err
	}
	doc, _, err := policy.Parse(data)
	if err != nil {
		return policy.Document{}, invalid(title(name), err)
	}
	return doc, nil
}
