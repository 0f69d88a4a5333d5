package firewall

import (
	"strings"
	"testing"
)

func TestANamespaceKeepsATextForWhoComesLater(t *testing.T) {
	if !namespace(t) {
		return
	}
	long := strings.Repeat("upstream=192.0.2.53 ", 50)
	for _, text := range []string{"nothing", long, "engine upstream=2001:db8::53"} {
		write := openAnew(t)
		if err := write.Keep(text); err != nil {
			t.Fatal(err)
		}
		if got, kept, err := openAnew(t).Kept(); got != text || !kept || err != nil {
			t.Errorf("kept %q, %v, %v; want %q", got, kept, err, text)
		}
	}
	// Neither rules that are loaded, nor their end, touch it, and it is no rules.
	k := openAnew(t)
	if guarded, err := k.Guarded(); guarded || err != nil {
		t.Errorf("guarded %v, %v, before there were rules", guarded, err)
	}
	rules := JoinedRuleset(JoinedInput{Own: Own{UID: 7}, Secrets: NewSecrets(ProbeMark)})
	if err := k.Apply(rules); err != nil {
		t.Fatal(err)
	}
	if guarded, err := openAnew(t).Guarded(); !guarded || err != nil {
		t.Errorf("guarded %v, %v, though rules stand", guarded, err)
	}
	if err := k.Delete(rules.Tables...); err != nil {
		t.Fatal(err)
	}
	if text, kept, err := k.Kept(); text != "engine upstream=2001:db8::53" || !kept || err != nil {
		t.Errorf("after the rules it keeps %q, %v, %v", text, kept, err)
	}
}

func TestANewNamespaceKeepsNothing(t *testing.T) {
	if !namespace(t) {
		return
	}
	if text, kept, err := openAnew(t).Kept(); text != "" || kept || err != nil {
		t.Errorf("it keeps %q, %v, %v", text, kept, err)
	}
}

func TestKeepingATextLeavesWhatIsKnownOfSets(t *testing.T) {
	if !namespace(t) {
		return
	}
	k := openAnew(t)
	rules := JoinedRuleset(JoinedInput{Own: Own{UID: 7}, Secrets: NewSecrets(ProbeMark)})
	if err := k.Apply(rules); err != nil {
		t.Fatal(err)
	}
	if err := k.Keep("nothing"); err != nil {
		t.Fatal(err)
	}
	if err := k.Change(joinedTable(), SetChange{Set: families()[0].shutAnySet()}); err != nil {
		t.Error(err)
	}
}

// openAnew opens the kernel as another process would, knowing nothing.
func openAnew(t *testing.T) *Kernel {
	t.Helper()
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}
