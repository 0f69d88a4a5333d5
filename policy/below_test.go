package policy

import "testing"

func TestHasAllowedBelow(t *testing.T) {
	c := Compile(Document{Mode: ModeAllowlist, Allowed: []Target{
		{Name: "www.example.test"}, {Name: "wild.test", Wildcard: true}, {Name: "leaf"},
	}}, Options{})
	for name, want := range map[string]bool{
		"example.test": true, "test": true, "test.": true, ".": true, "wild.test": true,
		"www.example.test": false, "a.wild.test": false, "leaf": false, "ample.test": false, "other": false,
	} {
		if got := c.HasAllowedBelow(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if Compile(Document{Mode: ModeNoNetwork, Allowed: []Target{{Name: "a.test"}}}, Options{}).HasAllowedBelow("test") {
		t.Error("a mode without an allowlist has nothing allowed below")
	}
}
