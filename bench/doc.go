// Command bench is the performance lab: it puts exeat and its peers, each
// configured at its best, between a client and an origin in network namespaces,
// measures them in interleaved rounds, and writes RESULTS.md.
//
// Rates swing from run to run with the machine; ratios within one run and
// processor time per unit do not. Targets are therefore stated against a named
// peer of the same run.
//
// A quick run is a step of continuous integration. It fails where what a unit costs
// (processor time in relation to a peer's or to the direct way's, memory, descriptors)
// is missed by more than 15 % in each of five tries, three of them at least while nobody
// else used the machine. Rates and times, peers that are not there, and misses on a busy
// machine are told at its end (TOLD) and fail nothing.
//
// Example:
//
//	make bench              # every target, 7 rounds (root)
//	make bench QUICK=1      # those with gates, fewer and shorter rounds, without writing anything
//	bin/bench run -only P1,P4
package main
