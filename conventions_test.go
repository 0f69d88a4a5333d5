// Package exeat_test holds the conventions of the tree (ARCHITECTURE.md,
// CONTRIBUTING.md): what may import what, how directories explain themselves,
// which names are not used.
package exeat_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/exeat/exeat/"

// arrows says which of our packages a package may import, itself and what lies
// below it aside; "*" is every one. A directory below one that is listed has the
// same arrows unless it is listed itself. See ARCHITECTURE.md for the picture.
var arrows = map[string][]string{
	"policy":      {},
	"audit":       {"policy"},
	"attribution": {"policy"},
	"probe":       {"policy"},
	"proxy":       {"attribution", "audit", "policy"},
	"dnsfilter":   {"attribution", "audit", "policy"},
	"firewall":    {"attribution", "audit", "policy"},
	"control":     {"audit", "policy"},
	"sealed":      {"firewall", "policy"},
	"sandbox":     {"control/api", "control/client", "policy"},
	"sidecar":     {"control", "proxy", "dnsfilter", "firewall", "attribution", "audit", "policy", "probe"},
	"images":      {},
	"cmd/exeatd":  {"*"},
	"cmd/exeat":   {"*"},
	"e2e/require": {},
	"e2e":         {"*"},
	"bench":       {"*"},
	"mutants":     {"*"},
	"tools/peers": {},
}

func TestArrowsPointOneWay(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest() {
			continue
		}
		dir := path.Dir(f.path)
		home, allowed := arrowsOf(dir)
		if home == "" {
			t.Errorf("%s: directory %s has no place in the table of arrows", f.path, dir)
			continue
		}
		for _, spec := range f.syntax.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: %v", f.path, err)
			}
			ours, isOurs := strings.CutPrefix(imported, module)
			if !isOurs || within(ours, home) || slices.Contains(allowed, "*") {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool { return within(ours, a) }) {
				t.Errorf("%s imports %s: %s may import %v only", f.path, ours, home, allowed)
			}
		}
	}
}

func TestEveryPackageExplainsItselfInDocGo(t *testing.T) {
	sources := map[string][]goFile{}
	for _, f := range goFiles(t) {
		if !f.isTest() {
			sources[path.Dir(f.path)] = append(sources[path.Dir(f.path)], f)
		}
	}
	for dir, files := range sources {
		documented := 0
		for _, f := range files {
			if f.syntax.Doc == nil {
				continue
			}
			documented++
			text := f.syntax.Doc.Text()
			want := "Package " + f.syntax.Name.Name + " "
			if f.syntax.Name.Name == "main" {
				want = "Command " + path.Base(dir) + " "
			}
			switch {
			case path.Base(f.path) != "doc.go":
				t.Errorf("%s: the package comment belongs in doc.go", f.path)
			case !strings.HasPrefix(text, want):
				t.Errorf("%s: the package comment begins with %q", f.path, want)
			case !strings.Contains(text, "\n\t"):
				t.Errorf("%s: the package comment shows an example", f.path)
			}
		}
		if documented != 1 {
			t.Errorf("%s: %d package comments, want one, in doc.go", dir, documented)
		}
	}
}

func TestNamesSayWhatAThingIs(t *testing.T) {
	forbidden := regexp.MustCompile(`^(utils?|common|helpers?|managers?|misc)$`)
	words := regexp.MustCompile(`[a-z0-9]+`)
	for _, file := range files(t) {
		for _, word := range words.FindAllString(strings.ToLower(file), -1) {
			if forbidden.MatchString(word) {
				t.Errorf("%s: %q names no thing", file, word)
			}
		}
	}
}

func TestNoFileNamesTheMachineItWasWrittenOn(t *testing.T) {
	// Built from pieces, so that this file does not name them either.
	paths := regexp.MustCompile(`(^|[^A-Za-z0-9_.~-])/(` + "wor" + `k|` + "far" + `m|home/[a-z]+)/|\.\./` + "shared")
	for _, file := range files(t) {
		if strings.HasPrefix(file, "mutants/") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			if found := paths.FindString(line); found != "" {
				t.Errorf("%s:%d names a path of one machine: %q", file, i+1, found)
			}
		}
	}
}

func TestProductCodeNeitherSleepsNorSwallowsErrors(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest() || within(f.path, "e2e") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && n.Sel.Name == "Sleep" {
					t.Errorf("%s: time.Sleep; wait for the thing itself", f.position(n))
				}
			case *ast.AssignStmt:
				if onlyBlank(n.Lhs) && isCall(n.Rhs) {
					t.Errorf("%s: an error assigned to _; handle it, or say in a function why it cannot matter", f.position(n))
				}
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" && !locksThread(n) {
					t.Errorf("%s: func init; wire it where it is used", f.position(n))
				}
			}
			return true
		})
	}
}

func TestEverySkipGoesThroughRequire(t *testing.T) {
	for _, f := range goFiles(t) {
		if within(f.path, "e2e/require") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				return true
			}
			if on, ok := sel.X.(*ast.Ident); ok && slices.Contains([]string{"t", "tb", "b", "f"}, on.Name) {
				t.Errorf("%s: skip through e2e/require, which fails under CI and is listed by make test", f.position(n))
			}
			return true
		})
	}
}

// goFile is one parsed file of the tree; path is relative, with slashes.
type goFile struct {
	path   string
	fset   *token.FileSet
	syntax *ast.File
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f goFile) position(n ast.Node) token.Position { return f.fset.Position(n.Pos()) }

// goFiles parses every Go file of the module.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var parsed []goFile
	for _, file := range files(t) {
		if !strings.HasSuffix(file, ".go") || strings.Contains(file, "testdata/") {
			continue
		}
		fset := token.NewFileSet()
		syntax, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, goFile{file, fset, syntax})
	}
	if len(parsed) == 0 {
		t.Fatal("no Go file was found")
	}
	return parsed
}

// files lists the tree, what is built aside.
func files(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, file):
			return fs.SkipDir
		case entry.Type().IsRegular():
			found = append(found, filepath.ToSlash(file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// arrowsOf gives the nearest listed directory at or above dir, and its arrows.
func arrowsOf(dir string) (string, []string) {
	for home := dir; home != "."; home = path.Dir(home) {
		if allowed, listed := arrows[home]; listed {
			return home, allowed
		}
	}
	return "", nil
}

// within says whether file is dir or lies below it.
func within(file, dir string) bool {
	return file == dir || strings.HasPrefix(file, dir+"/")
}

// locksThread says whether an init function ties main to the first thread, which
// can be done nowhere else (runtime.LockOSThread).
func locksThread(init *ast.FuncDecl) bool {
	found := false
	ast.Inspect(init, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		found = found || ok && sel.Sel.Name == "LockOSThread"
		return !found
	})
	return found
}

func onlyBlank(exprs []ast.Expr) bool {
	for _, e := range exprs {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

func isCall(exprs []ast.Expr) bool {
	if len(exprs) != 1 {
		return false
	}
	_, ok := exprs[0].(*ast.CallExpr)
	return ok
}
