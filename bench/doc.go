// Command bench is the performance lab: it puts exeat and its peers, each
// configured at its best, between a client and an origin in network namespaces,
// measures them in interleaved rounds, and writes RESULTS.md.
//
// Rates swing from run to run with the machine; ratios within one run and
// processor time per unit do not. Targets are therefore stated against a named
// peer of the same run.
//
// Example:
//
//	make bench              # every target, 7 rounds (root)
//	make bench QUICK=1      # fewer and shorter rounds; fails where a ratio is missed by more than 15 % in three tries
//	bin/bench run -only P1,P4
package main
