package exeat_test

import (
	"fmt"
	"go/ast"
	"path"
	"strings"
	"testing"

	"github.com/exeat/exeat/probe"
)

// TestTheTableOfRowsIsTheCatalogue holds the table of SECURITY.md to package
// probe, and every test that the catalogue names to be there.
func TestTheTableOfRowsIsTheCatalogue(t *testing.T) {
	tests := map[string]bool{}
	for _, f := range goFiles(t) {
		if !f.isTest() {
			continue
		}
		dir := path.Dir(f.path)
		for _, d := range f.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				tests[dir+"."+f.Name.Name] = true
			}
		}
	}
	var table strings.Builder
	for _, row := range probe.Rows() {
		for _, name := range row.Tests {
			if !tests[name] {
				t.Errorf("%s: there is no test %s", row.ID, name)
			}
		}
		left := row.Residual
		if left == "" {
			left = "–"
		}
		tested := "–"
		if len(row.Tests) > 0 {
			tested = "`" + strings.Join(row.Tests, "` `") + "`"
		}
		if tested == "–" && row.Residual == "" {
			tested = "**not yet**"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s |\n", row.ID, row.Attack, row.Defence, left, tested)
	}
	generated(t, "SECURITY.md", table.String())
}

// TestEveryRowIsInTheCatalogue: from B01 to B79, without the numbers that were
// never given.
func TestEveryRowIsInTheCatalogue(t *testing.T) {
	last := map[string]int{"B0": 9, "B1": 19, "B2": 23, "B3": 39, "B4": 48, "B5": 59, "B6": 67, "B7": 79}
	want := 0
	for ten, to := range last {
		for n := int(ten[1]-'0') * 10; n <= to; n++ {
			if n == 0 {
				continue
			}
			want++
			if _, ok := probe.RowOf(fmt.Sprintf("B%02d", n)); !ok {
				t.Errorf("the catalogue has no row B%02d", n)
			}
		}
	}
	if got := len(probe.Rows()); got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
}
