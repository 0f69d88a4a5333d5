// Package firewall holds what the kernel enforces: it turns a policy and the
// facts of a namespace into an nftables Ruleset (a plain value that prints as
// nft text), applies it without an open moment, and reports what the kernel
// refused.
//
//	k, err := firewall.Open()
//	if err != nil {
//		return err
//	}
//	defer k.Close()
//	err = k.Apply(firewall.Ruleset{Tables: []firewall.Table{{
//		Family: firewall.Inet, Name: "exeat",
//		Chains: []firewall.Chain{{
//			Name: "output",
//			Hook: &firewall.Hook{Type: "filter", Point: firewall.Output, Drop: true},
//			Rules: []firewall.Rule{
//				firewall.NewRule(firewall.OutIface("lo"), firewall.Accept()),
//				firewall.NewRule(firewall.Drop()),
//			},
//		}},
//	}}})
package firewall
