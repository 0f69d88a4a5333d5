package firewall

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// sizeText is the size of a set, which depends on how many elements it had when it
// was made.
var sizeText = regexp.MustCompile(`(?m)^\t\tsize \d+\n`)

// However a swap is made, the kernel holds afterwards what the policy says.
func TestAfterASwapOfFewTargetsTheKernelHoldsWhatThePolicySays(t *testing.T) {
	if !namespace(t) {
		return
	}
	var many strings.Builder
	for i := range 2 * sizedFrom {
		fmt.Fprintf(&many, `"203.0.113.%d:%d",`, i%256, 1000+i)
	}
	base := many.String() + `"198.51.100.1"`
	policies := []struct{ about, allowed, denied string }{
		{"the first", base, ""},
		{"an address more", base + `,"192.0.2.1:443"`, ""},
		{"another port of it", base + `,"192.0.2.1:443","192.0.2.1:444"`, ""},
		{"both fewer", base, ""},
		{"an IPv4 address denied, and with it the IPv6 prefixes that lead there", base, `"198.51.100.1:22"`},
		{"an IPv6 address more", base + `,"2001:db8::1"`, `"198.51.100.1:22"`},
		{"one in place of another", base + `,"2001:db8::2"`, `"198.51.100.1:22"`},
		{"none denied", base, ""},
	}
	var fw *Firewall
	for i, p := range policies {
		c := compiled(t, fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":[%s],"denied_hosts":[%s]}`, p.allowed, p.denied))
		if fw == nil {
			k, err := Open()
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			fw = New(k, basicInput(c), nil)
			if err := fw.Apply(); err != nil {
				t.Fatal(err)
			}
		} else if _, err := fw.SwapPolicy(c, nil); err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprint(i, " ", p.about), func(t *testing.T) {
			compareRuleset(t, sizeText.ReplaceAllString(sh(t, "nft list ruleset"), ""), sizeText.ReplaceAllString(JoinedRuleset(basicInput(c)).String(), ""))
		})
	}
}
