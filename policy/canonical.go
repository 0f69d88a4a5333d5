package policy

import "strconv"

// MarshalJSON writes the canonical document (policy.md section 1). A Document
// without a legal mode, which no parse gives, is written as it is enforced:
// "no-network".
func (d Document) MarshalJSON() ([]byte, error) {
	switch d.Mode {
	case ModePublic:
		return []byte(`"public"`), nil
	case ModeAllowlist, ModeDenylist:
	case ModeNoNetwork:
		return []byte(`"no-network"`), nil
	default:
		return []byte(`"no-network"`), nil
	}
	b := make([]byte, 0, 64+32*(len(d.Allowed)+len(d.Denied)))
	b = append(b, `{"network_mode":"`...)
	b = append(b, d.Mode...)
	b = append(b, '"')
	b = appendList(b, fieldAllowed, d.Allowed)
	b = appendList(b, fieldDenied, d.Denied)
	return append(b, '}'), nil
}

// UnmarshalJSON is Parse without the warnings.
func (d *Document) UnmarshalJSON(data []byte) error {
	parsed, _, err := Parse(data)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

func appendList(b []byte, name string, targets []Target) []byte {
	if len(targets) == 0 {
		return b
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":[`...)
	for i, t := range targets {
		if i > 0 {
			b = append(b, ',')
		}
		b = t.appendJSON(b)
	}
	return append(b, ']')
}

// MarshalJSON writes the target as canonical does: a string, or an object where
// a string cannot say it.
func (t Target) MarshalJSON() ([]byte, error) { return t.appendJSON(nil), nil }

// appendJSON needs no escaping: normalised hosts have none to do.
func (t Target) appendJSON(b []byte) []byte {
	if t.Proto == ProtocolUnset && !t.Private {
		b = append(b, '"')
		b = t.appendRule(b)
		return append(b, '"')
	}
	b = append(b, `{"host":"`...)
	b = t.appendHost(b, false)
	b = append(b, '"')
	if t.Port != 0 {
		b = append(b, `,"port":`...)
		b = strconv.AppendUint(b, uint64(t.Port), 10)
	}
	if t.Proto != ProtocolUnset {
		b = append(b, `,"protocol":"`...)
		b = append(b, t.Proto...)
		b = append(b, '"')
	}
	switch {
	case t.Private:
		b = append(b, `,"private":true`...)
	case t.notPrivate:
		b = append(b, `,"private":false`...)
	}
	return append(b, '}')
}
