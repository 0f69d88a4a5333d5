package exeat_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of documents anew")

// licences are the ones that the product may contain, told by words that each
// has and no other.
var licences = []struct{ name, words string }{
	{"Apache-2.0", "Apache License Version 2.0"},
	{"BSD-3-Clause", "Neither the name of"},
	{"BSD-3-Clause", "names of its contributors may be used"},
	{"BSD-2-Clause", "Redistribution and use in source and binary forms, with or without modification, are permitted"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"},
}

// copyleft are words of licences that would reach the product's own source.
var copyleft = []string{"GNU GENERAL PUBLIC LICENSE", "GNU LESSER GENERAL PUBLIC", "GNU AFFERO", "Mozilla Public License", "European Union Public Licence", "Eclipse Public License", "Common Development and Distribution License"}

// goModule is a module that packages of ours import.
type goModule struct {
	Path, Version, Dir string
	Main               bool
}

// TestNoCopyleftLicenceEntersTheProduct reads the licence of every module that is
// linked into a program, and holds docs/licences.md to be the list of them.
func TestNoCopyleftLicenceEntersTheProduct(t *testing.T) {
	var list strings.Builder
	for _, m := range linkedModules(t) {
		texts := licenceTexts(t, m.Dir)
		name := licenceOf(texts)
		if name == "" {
			t.Errorf("%s %s: no licence that is known here in %s", m.Path, m.Version, m.Dir)
		}
		for _, word := range copyleft {
			if strings.Contains(strings.ToUpper(texts), strings.ToUpper(word)) {
				t.Errorf("%s %s: its licence says %q", m.Path, m.Version, word)
			}
		}
		fmt.Fprintf(&list, "| `%s` | %s |\n", m.Path, name)
	}
	generated(t, "docs/licences.md", list.String())
}

// linkedModules are those of the programs on every system that they are built for.
func linkedModules(t *testing.T) []goModule {
	t.Helper()
	found := map[string]goModule{}
	for _, goos := range []string{"linux", "darwin"} {
		cmd := exec.Command("go", "list", "-deps", "-json=Module", "./cmd/...")
		cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p struct{ Module *goModule }
			err := dec.Decode(&p)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Module != nil && !p.Module.Main {
				found[p.Module.Path] = *p.Module
			}
		}
	}
	var all []goModule
	for _, m := range found {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b goModule) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// licenceTexts are all licences that a module has, in one line.
func licenceTexts(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	for _, pattern := range []string{"LICEN[SC]E*", "COPYING*", "Licen[sc]e*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(data)
		}
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

func licenceOf(text string) string {
	for _, l := range licences {
		if strings.Contains(text, l.words) {
			return l.name
		}
	}
	return ""
}

const (
	generatedFrom = "<!-- generated: go test . -update -->\n"
	generatedTo   = "<!-- end -->\n"
)

// generated holds the part of a document between its two marks, after the two
// lines of a table's head; -update writes it.
func generated(t *testing.T, file, want string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), generatedFrom)
	got, after, ok2 := strings.Cut(rest, generatedTo)
	lines := strings.SplitAfterN(got, "\n", 4)
	if !ok || !ok2 || len(lines) < 4 {
		t.Fatalf("%s has no part between %q and %q with a table's head", file, generatedFrom, generatedTo)
	}
	head := strings.Join(lines[:3], "")
	if got == head+want {
		return
	}
	if !*update {
		t.Errorf("%s is not as it would be generated: go test . -update", file)
		return
	}
	if err := os.WriteFile(file, []byte(before+generatedFrom+head+want+generatedTo+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
