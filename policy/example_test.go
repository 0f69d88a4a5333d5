package policy_test

import (
	"fmt"

	"github.com/exeat/exeat/policy"
)

func Example() {
	document := []byte(`{
		"network_mode": "allowlist",
		"allowed_hosts": ["pypi.org:443", "*.pythonhosted.org"],
		"denied_hosts": ["evil.pythonhosted.org"]
	}`)
	parsed, _, err := policy.Parse(document)
	if err != nil {
		fmt.Println(err)
		return
	}
	compiled := policy.Compile(parsed, policy.Options{Generation: 1})
	for _, target := range []string{"pypi.org", "files.pythonhosted.org:80", "evil.pythonhosted.org", "pypi.org:80"} {
		request, err := policy.ParseAskTarget(target)
		if err != nil {
			fmt.Println(err)
			return
		}
		d := compiled.Decide(request)
		fmt.Println(target, d.Verdict, d.Reason, d.Rule)
	}
	// Output:
	// pypi.org allow rule pypi.org:443
	// files.pythonhosted.org:80 allow rule *.pythonhosted.org
	// evil.pythonhosted.org deny denied evil.pythonhosted.org
	// pypi.org:80 deny unlisted
}

func ExampleParse_errors() {
	_, _, err := policy.Parse([]byte(`{"network_mode": "allowlist", "allowed_hosts": ["https://pypi.org/simple", "203.0.113.7/24"]}`))
	fmt.Println(err)
	// Output:
	// allowed_hosts[0]: "https://pypi.org/simple" has a scheme; a target is a host and a port, not a URL; write "pypi.org", or "pypi.org:443" for that port alone
	// allowed_hosts[1]: "203.0.113.7/24" has bits set beyond its prefix length; write "203.0.113.0/24" for the range, or "203.0.113.7" for the one address
}
