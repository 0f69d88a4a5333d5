package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/exeat/exeat/policy"
)

// timeLayout is RFC 3339 in UTC at a fixed width, so that lines sort as text.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// MarshalZerologObject writes the members of the table in the package comment.
func (e Event) MarshalZerologObject(z *zerolog.Event) {
	if e.ID != 0 {
		z.Uint64(FieldID, e.ID)
	}
	z.Str(FieldTime, e.Time.UTC().Format(timeLayout))
	z.Str(FieldKind, string(e.Kind))
	text(z, FieldDecision, e.DecisionID)
	if e.hasVerdict() {
		z.Str(FieldVerdict, e.Verdict.String())
	}
	text(z, FieldReason, string(e.Reason))
	text(z, FieldRule, e.Rule)
	number(z, FieldGeneration, e.Generation)
	text(z, FieldPhase, e.Phase)
	text(z, FieldChannel, string(e.Channel))
	e.marshalTarget(z)
	text(z, FieldQType, e.QType)
	text(z, FieldFlow, e.FlowID)
	if e.Kind == KindFlow {
		z.Uint64(FieldBytesOut, e.BytesOut)
		z.Uint64(FieldBytesIn, e.BytesIn)
	}
	if e.Duration != 0 || e.Kind == KindFlow {
		z.Int64(FieldDurationUS, e.Duration.Microseconds())
	}
	text(z, FieldError, e.Error)
	text(z, FieldMessage, e.Message)
	if e.Kind == KindSwap {
		z.Int(FieldRevoked, e.Revoked)
	}
	number(z, FieldFolded, e.Folded)
	if !e.Since.IsZero() {
		z.Str(FieldSince, e.Since.UTC().Format(timeLayout))
	}
}

func (e *Event) marshalTarget(z *zerolog.Event) {
	text(z, FieldName, e.Name)
	if e.Addr.IsValid() {
		z.Str(FieldAddr, e.Addr.String())
	}
	number(z, FieldPort, uint64(e.Port))
	if (e.Name != "" || e.Addr.IsValid()) && e.Channel != ChannelDNS {
		z.Str(FieldProtocol, e.Protocol.String())
	}
}

func (e *Event) hasVerdict() bool { return e.Kind == KindDecision || e.Kind == KindFlow }

func text(z *zerolog.Event, field, value string) {
	if value != "" {
		z.Str(field, value)
	}
}

func number(z *zerolog.Event, field string, value uint64) {
	if value != 0 {
		z.Uint64(field, value)
	}
}

// MarshalJSON writes the event as its line in the log, without the line's end.
func (e Event) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	logger := zerolog.New(&b)
	logger.Log().EmbedObject(e).Send()
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// line is an Event as it is read back; TestEventReadsBackWhatItWrote holds its
// names to the constants.
type line struct {
	ID         uint64          `json:"id"`
	Time       time.Time       `json:"time"`
	Kind       Kind            `json:"kind"`
	Decision   string          `json:"decision"`
	Verdict    policy.Verdict  `json:"verdict"`
	Reason     policy.Reason   `json:"reason"`
	Rule       string          `json:"rule"`
	Generation uint64          `json:"generation"`
	Phase      string          `json:"phase"`
	Channel    Channel         `json:"channel"`
	Name       string          `json:"name"`
	Addr       netip.Addr      `json:"addr"`
	Port       uint16          `json:"port"`
	Protocol   policy.Protocol `json:"protocol"`
	QType      string          `json:"qtype"`
	Flow       string          `json:"flow"`
	BytesOut   uint64          `json:"bytes_out"`
	BytesIn    uint64          `json:"bytes_in"`
	DurationUS int64           `json:"duration_us"`
	Error      string          `json:"error"`
	Message    string          `json:"message"`
	Revoked    int             `json:"revoked"`
	Folded     uint64          `json:"folded"`
	Since      time.Time       `json:"since"`
}

// UnmarshalJSON reads a line of the log. Members that it does not know are left
// out, so that an older reader can follow a newer engine.
func (e *Event) UnmarshalJSON(data []byte) error {
	var l line
	if err := json.Unmarshal(data, &l); err != nil {
		return fmt.Errorf("event: %w", err)
	}
	*e = Event{
		ID: l.ID, Time: l.Time, Kind: l.Kind, DecisionID: l.Decision, Verdict: l.Verdict, Reason: l.Reason,
		Rule: l.Rule, Generation: l.Generation, Phase: l.Phase, Channel: l.Channel, Name: l.Name, Addr: l.Addr,
		Port: l.Port, Protocol: l.Protocol, QType: l.QType, FlowID: l.Flow, BytesOut: l.BytesOut, BytesIn: l.BytesIn,
		Duration: time.Duration(l.DurationUS) * time.Microsecond, Error: l.Error, Message: l.Message,
		Revoked: l.Revoked, Folded: l.Folded, Since: l.Since,
	}
	return nil
}
