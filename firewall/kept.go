package firewall

import (
	"errors"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// keptTable is where Keep keeps its text. Nothing in it judges packets.
const keptTable = "exeat_kept"

// keptPart is how much of a text a rule's comment holds: nft writes no longer ones.
const keptPart = 120

// Keep leaves a text in the namespace, which Kept finds for as long as the namespace
// lives, whatever becomes of us. Only who may remove the rules can change it.
//
//	table inet exeat_kept { chain text { return comment "TEXT" } }
func (k *Kernel) Keep(text string) error {
	c := Chain{Name: "text"}
	for from := 0; from < len(text); from += keptPart {
		c.Rules = append(c.Rules, rule(Return()).Comments(text[from:min(from+keptPart, len(text))]))
	}
	return k.Apply(Ruleset{Tables: []Table{{Family: Inet, Name: keptTable, Chains: []Chain{c}}}})
}

// Kept gives the text that was kept in the namespace, by whichever process; false
// where none was.
func (k *Kernel) Kept() (text string, kept bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	data := appendAttrString(nfgen(Inet, 0), unix.NFTA_RULE_TABLE, keptTable)
	err = k.sock.dump(nfTables|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, data, func(_ unix.NlMsghdr, data []byte) error {
		if len(data) < 4 {
			return errShortMessage
		}
		var table, part string
		var is bool
		err := attributes(data[4:], func(typ uint16, b []byte) {
			switch typ {
			case unix.NFTA_RULE_TABLE:
				table = cString(b)
			case unix.NFTA_RULE_USERDATA:
				part, is = userdata.GetString(b, userdata.TypeComment)
			}
		})
		if err == nil && is && table == keptTable && Family(data[0]) == Inet {
			text, kept = text+part, true
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read what was kept in table %s: %w", keptTable, err)
	}
	return text, kept, nil
}

// Guarded says that somebody of us has put rules in force in the namespace before.
func (k *Kernel) Guarded() (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	standing, err := k.inventory(joinedTable())
	return len(standing.chains) > 0, err
}
