//go:build !image

package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// summaryRows bounds each half of a printed summary; the rest is one line.
const summaryRows = 20

// writeSummary prints what was allowed, denied and failed, by target.
func writeSummary(w io.Writer, counts []audit.Count) error {
	var allowed, denied, failed []audit.Count
	for _, c := range counts {
		switch {
		case c.Error != "":
			failed = append(failed, c)
		case c.Verdict == policy.Allow:
			allowed = append(allowed, c)
		default:
			denied = append(denied, c)
		}
	}
	if len(counts) == 0 {
		_, err := fmt.Fprintln(w, "exeat: nothing was asked of the network")
		return err
	}
	fmt.Fprintf(w, "exeat: %d allowed, %d denied\n", total(allowed), total(denied))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	summaryHalf(table, "allow", allowed)
	summaryHalf(table, "deny", denied)
	summaryHalf(table, "error", failed)
	return table.Flush()
}

func summaryHalf(w io.Writer, word string, counts []audit.Count) {
	for i, c := range counts {
		if i == summaryRows {
			fmt.Fprintf(w, "  %s\t%d more targets\t%d×\t\n", word, len(counts)-i, total(counts[i:]))
			return
		}
		why := string(c.Reason)
		if c.Error != "" {
			why = c.Error
		}
		fmt.Fprintf(w, "  %s\t%s\t%d×\t%s\n", word, c.Target, c.Count, why)
	}
}

func total(counts []audit.Count) (n uint64) {
	for _, c := range counts {
		n += c.Count
	}
	return n
}
