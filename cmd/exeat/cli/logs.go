package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// logFlags are the filters of `logs`.
type logFlags struct {
	follow         bool
	after          uint64
	since, verdict string
	reasons, kinds []string
	name           string
}

func newLogsCommand(s *streams) *cobra.Command {
	var flags logFlags
	cmd := &cobra.Command{
		Use:   "logs SANDBOX",
		Short: "Print what was allowed and denied, and why",
		Long: `Prints the log of a sandbox, oldest first: one line an event, or with -o json the
JSON lines that "exeat run --log" writes. With -f it goes on until interrupted.`,
		Example: `  exeat logs task-17 -f
  exeat logs task-17 --verdict deny --since 10m
  exeat logs task-17 --kind decision --name '*.example.com' -o json`,
	}
	f := cmd.Flags()
	f.BoolVarP(&flags.follow, "follow", "f", false, "go on with what is yet to come")
	f.StringVar(&flags.since, "since", "", "leave out what happened before `10m|TIME` (RFC 3339)")
	f.Uint64Var(&flags.after, "after", 0, "leave out events up to `ID`")
	f.StringVar(&flags.verdict, "verdict", "", "only `allow|deny`")
	f.StringArrayVar(&flags.reasons, "reason", nil, "only decisions for this `REASON` (repeatable)")
	f.StringArrayVar(&flags.kinds, "kind", nil, "only events of this `KIND` (repeatable)")
	f.StringVar(&flags.name, "name", "", "only this `NAME`, or *.NAME for all below it")
	complete(cmd, "verdict", "allow", "deny")
	var kinds []string
	for _, k := range audit.Kinds() {
		kinds = append(kinds, string(k))
	}
	complete(cmd, "kind", kinds...)
	return sandboxCommand(cmd, 0, 0, func(ctx context.Context, c *client.Client, _ []string) error {
		query, err := flags.query()
		if err != nil {
			return err
		}
		for event, err := range c.Events(ctx, query) {
			if err != nil {
				if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
					return nil
				}
				return err
			}
			if err := s.writeEvent(event); err != nil {
				return err
			}
		}
		return nil
	})
}

// query reads the flags with the API's own grammar, so that both complain alike.
func (f *logFlags) query() (api.EventQuery, error) {
	values := api.EventQuery{Follow: f.follow, After: f.after, Name: f.name}.Values()
	if f.since != "" {
		values.Add("since", f.since)
	}
	if f.verdict != "" {
		values.Set("verdict", f.verdict)
	}
	for _, r := range f.reasons {
		values.Add("reason", r)
	}
	for _, k := range f.kinds {
		values.Add("kind", k)
	}
	query, problems := api.ParseEventQuery(values, time.Now())
	if len(problems) == 0 {
		return query, nil
	}
	faults := make([]error, 0, len(problems))
	for _, p := range problems {
		faults = append(faults, fmt.Errorf("--%s", p))
	}
	return query, &usageError{errors.Join(faults...)}
}

func (s *streams) writeEvent(e audit.Event) error {
	if s.format == formatJSON {
		return s.json(e)
	}
	return s.printf("%s\n", eventLine(e))
}

// eventLine is an event for people: when, what, whom it concerns, and why.
func eventLine(e audit.Event) string {
	words := []string{e.Time.Local().Format("15:04:05.000")}
	switch e.Kind {
	case audit.KindDecision:
		words = append(words, fmt.Sprintf("%-5s", e.Verdict), e.Target(), string(e.Reason))
		if e.Rule != "" {
			words = append(words, "("+e.Rule+")")
		}
	case audit.KindFlow:
		words = append(words, "ended", e.Target(), fmt.Sprintf("%d out, %d in, %s", e.BytesOut, e.BytesIn, e.Duration.Round(time.Millisecond)))
		if e.Verdict == policy.Deny {
			words = append(words, string(e.Reason))
		}
	case audit.KindError:
		words = append(words, "error", e.Target(), e.Error)
	case audit.KindSwap:
		words = append(words, "swap ", fmt.Sprintf("generation %d, %d flows cut", e.Generation, e.Revoked))
		if e.Phase != "" {
			words = append(words, "phase "+e.Phase)
		}
	case audit.KindLost:
		words = append(words, fmt.Sprintf("… %d events lost: read too slowly", e.Folded))
	case audit.KindLease, audit.KindReady, audit.KindBreach, audit.KindLifecycle:
		words = append(words, string(e.Kind))
	}
	if e.QType != "" {
		words = append(words, e.QType)
	}
	if e.Channel != "" {
		words = append(words, string(e.Channel))
	}
	if e.Message != "" {
		words = append(words, e.Message)
	}
	if e.Folded > 0 && e.Kind != audit.KindLost {
		words = append(words, strconv.FormatUint(e.Folded, 10)+" more like it")
	}
	if e.DecisionID != "" {
		words = append(words, "["+e.DecisionID+"]")
	}
	return strings.Join(words, " ")
}
