package firewall

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// inventory is what a table holds by name, whoever made it.
type inventory struct {
	sets, used map[string]bool
	chains     []string
}

// inventory asks the kernel; a table that does not exist holds nothing.
func (k *Kernel) inventory(t Table) (inventory, error) {
	inv := inventory{sets: map[string]bool{}, used: map[string]bool{}}
	err := k.list(t, unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, func(name string) { inv.sets[name] = true })
	if err != nil {
		return inv, fmt.Errorf("list sets of table %s: %w", t.Name, err)
	}
	err = k.list(t, unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, func(name string) { inv.chains = append(inv.chains, name) })
	if err != nil {
		return inv, fmt.Errorf("list chains of table %s: %w", t.Name, err)
	}
	return inv, nil
}

// list dumps the names of the objects of one kind in a table. (The kernel
// filters sets by table but not chains: names of other tables are left out
// here.)
func (k *Kernel) list(t Table, msg, tableAttr, nameAttr uint16, f func(name string)) error {
	data := appendAttrString(nfgen(t.Family, 0), tableAttr, t.Name)
	err := k.sock.dump(nfTables|msg, unix.NLM_F_DUMP, data, func(_ unix.NlMsghdr, data []byte) error {
		if len(data) < 4 {
			return errShortMessage
		}
		var table, name string
		err := attributes(data[4:], func(typ uint16, b []byte) {
			switch typ {
			case tableAttr:
				table = cString(b)
			case nameAttr:
				name = cString(b)
			}
		})
		if err == nil && table == t.Name && Family(data[0]) == t.Family {
			f(name)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func cString(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// checkSets refuses a rule that names a set its table does not have.
func checkSets(s Statement, names map[string]string) error {
	for _, e := range s.exprs {
		if l, ok := e.(*expr.Lookup); ok && l.SetName != "" && names[l.SetName] == "" {
			return fmt.Errorf("no set %q in the table", l.SetName)
		}
	}
	return nil
}
