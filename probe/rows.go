package probe

import "slices"

// Row is one way round an egress sandbox.
type Row struct {
	// ID is its number; numbers are never used again.
	ID string `json:"id"`
	// Attack and Defence are a line each.
	Attack  string `json:"attack"`
	Defence string `json:"defence"`
	// Residual says what is left, where the row is not stopped but documented.
	Residual string `json:"residual,omitempty"`
	// Tests hold the row, each as package.TestName.
	Tests []string `json:"tests,omitempty"`
}

// Rows is the whole catalogue, by number.
func Rows() []Row {
	rows := slices.Concat(packetRows(), stateRows(), nameRows(), sealedRows())
	slices.SortFunc(rows, func(a, b Row) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return rows
}

// RowOf finds a row by its number.
func RowOf(id string) (Row, bool) {
	for _, r := range Rows() {
		if r.ID == id {
			return r, true
		}
	}
	return Row{}, false
}

const (
	packetSuite = "e2e/bypass.TestPacketsUnderEachCapabilitySet"
	sealedSuite = "e2e/bypass.TestTheProbeInsideASealedSandbox"
	namesSuite  = "e2e/bypass.TestNothingReachesTheAttackersAddress"
	firewallAll = "firewall.TestNoWayRoundCarriesAByteOut"
	sealedAll   = "sealed.TestEachWayRoundIsShutAndIsOneWithoutItsDefence"
)

// packetRows are about packets.
func packetRows() []Row {
	return []Row{
		{ID: "B01", Attack: "Plain TCP and UDP, mapped sockets, broadcast, multicast, metadata, gateway", Defence: "One `inet` table whose output drops", Tests: []string{packetSuite, sealedSuite, firewallAll}},
		{ID: "B02", Attack: "IPv6 where the rules are IPv4's", Defence: "`inet` covers both", Tests: []string{packetSuite, sealedSuite, firewallAll}},
		{ID: "B03", Attack: "Data in a SYN (Fast Open); multipath TCP", Defence: "Dropped; no MPTCP on our own sockets", Tests: []string{packetSuite, sealedSuite, firewallAll}},
		{ID: "B04", Attack: "Raw IP: any protocol, fragments", Defence: "Output drops", Tests: []string{packetSuite, firewallAll}},
		{ID: "B05", Attack: "Packet sockets, odd ethertypes, VLAN tags", Defence: "A netdev egress hook on every link, which drops", Tests: []string{packetSuite, firewallAll}},
		{ID: "B06", Attack: "AF_XDP, which no hook sees", Defence: "No NET_RAW, or every queue is held", Tests: []string{packetSuite, "firewall.TestTheAgentFindsNoQueueOfALinkThatIsHeld"}},
		{ID: "B07", Attack: "A forged mark", Defence: "64 secret bits; a socket's own mark is cleared first", Tests: []string{packetSuite, firewallAll}},
		{ID: "B08", Attack: "Payload in ARP", Defence: "ARP of any socket drops", Tests: []string{packetSuite, firewallAll}},
		{ID: "B09", Attack: "Ping sockets, which take no capability", Defence: "ICMP is never accepted blindly", Tests: []string{packetSuite, sealedSuite, firewallAll}},
		{ID: "B10", Attack: "Raw neighbour discovery and group reports with data", Defence: "ICMPv6 of a socket drops", Tests: []string{packetSuite, firewallAll}},
		{ID: "B11", Attack: "IPv6 extension headers before UDP", Defence: "Rules match `meta l4proto`", Tests: []string{packetSuite, firewallAll}},
		{ID: "B12", Attack: "A source route through an allowed address", Defence: "Packets with options drop", Tests: []string{packetSuite, firewallAll}},
		{ID: "B13", Attack: "A redirected packet on a socket bound to a link", Defence: "What is not stamped leaves on lo alone", Tests: []string{packetSuite, firewallAll}},
		{ID: "B14", Attack: "Reflection: spoofed sources", Defence: "No blanket `established`; foreign sources on lo drop", Tests: []string{packetSuite, firewallAll}},
		{ID: "B15", Attack: "A frame on lo, and inherited forwarding", Defence: "Forward drops; foreign destinations on lo drop", Tests: []string{packetSuite, firewallAll}},
		{ID: "B16", Attack: "The engine's DNS on its high port", Defence: "The agent may not send to 127.0.0.11", Tests: []string{sealedSuite, "firewall.TestTheEnginesDNSAnswersUsAndNobodyElse", "e2e/containers.TestDockersDNSIsNoWayRound"}},
		{ID: "B17", Attack: "Foreign destinations on lo", Defence: "As B14; route_localnet is never set", Tests: []string{packetSuite, firewallAll}},
		{ID: "B18", Attack: "AF_VSOCK", Defence: "A filter of system calls", Residual: "In a container without such a filter it is the hypervisor's to shut", Tests: []string{sealedSuite, sealedAll}},
		{ID: "B19", Attack: "io_uring", Defence: "Filtered as any socket; refused in the sealed shape", Tests: []string{packetSuite, sealedAll}},
		{ID: "B20", Attack: "Addresses that hold others (NAT64, 6to4 …), metadata addresses", Defence: "A class table that looks through them", Tests: []string{packetSuite, sealedSuite, "policy.TestClassBoundaries", "dnsfilter.TestAnswersAreCheckedBeforeTheyAreGiven"}},
		{ID: "B21", Attack: "A new or renamed link without the hook", Defence: "One hook for all links, or links are watched", Tests: []string{sealedSuite, "firewall.TestAnEgressChainOnAnyLinkCoversLinksThatComeLater", "firewall.TestALinkThatAppearsGetsItsEgressChainBeforeAnythingElse"}},
		{ID: "B22", Attack: "Denials that hang", Defence: "Rejects: a RST or administratively prohibited", Tests: []string{packetSuite, sealedSuite, "firewall.TestAnAllowlistLetsOutWhatItListsAndRefusesTheRestAtOnce", "e2e/containers.TestBothFamilies"}},
		{ID: "B23", Attack: "QUIC", Defence: "udp/443 is rejected at once", Tests: []string{packetSuite, sealedSuite, "sealed.TestEverythingComesToTheListenersOrIsRefused"}},
	}
}

// stateRows are about state and lifecycle.
func stateRows() []Row {
	return []Row{
		{ID: "B30", Attack: "Flows opened under a wider policy live on", Defence: "Every packet is judged anew; the proxy judges its flows again", Tests: []string{"firewall.TestASwapEndsDirectFlowsThatItForbidsAndNoOthers", "proxy.TestASwapCutsWhatItForbids", "proxy.TestNotAByteAfterRejudge", "e2e/joined.TestASwapCutsWhatItForbidsAndTouchesNothingElse", "e2e.TestPromise2NotOneByteAfterTheSwapHasReturned"}},
		{ID: "B31", Attack: "Half-open connections at the swap", Defence: "Input drops too; an admission is judged once more", Tests: []string{"proxy.TestAFlowAdmittedDuringASwapDoesNotLiveOn"}},
		{ID: "B32", Attack: "The moment of the swap itself", Defence: "Sets first, then rules, in one transaction that keeps the chains", Tests: []string{"firewall.TestNoPacketIsMisjudgedWhileThePolicyIsSwapped", "e2e/joined.TestSwapsUnderLoadLeakNothingAndRefuseNothingAllowed"}},
		{ID: "B33", Attack: "The sidecar dies", Defence: "The rules stay; the sealed sandbox ends", Tests: []string{"sealed.TestNothingIsLeftWhenTheEngineIsKilled", "e2e/joined.TestAKilledKeeperLeavesTheSandboxShut", "e2e/joined.TestAKilledWorkerIsReplacedWithoutARefusedConnection"}},
		{ID: "B34", Attack: "Killing or robbing the sidecar", Defence: "Its own uid and PID namespace, not dumpable", Tests: []string{packetSuite, sealedSuite, "sealed.TestTheEngineCanHideItself", "e2e/joined.TestKeeperAndWorkerHoldNetAdminAndNothingElse"}},
		{ID: "B35", Attack: "Port theft", Defence: "No SO_REUSE*; bound before the agent starts, never let go", Tests: []string{packetSuite, sealedSuite}},
		{ID: "B36", Attack: "Abstract Unix sockets", Defence: "The control socket is in the file system, mode 0600", Tests: []string{packetSuite, sealedSuite, "control.TestListen"}},
		{ID: "B37", Attack: "A direct dial to the proxy's port", Defence: "Destinations that are ours are refused", Tests: []string{packetSuite, sealedSuite, "proxy.TestOurOwnAddressesAreNeverDialled", "sealed.TestTheOtherListenersCannotBeDialledDirectly"}},
		{ID: "B38", Attack: "Secrets in connection marks", Defence: "There are none", Tests: []string{packetSuite, sealedSuite}},
		{ID: "B39", Attack: "The connection table filled", Defence: "Own loopback untracked; redirected flows counted", Tests: []string{"e2e/bypass.TestTheConnectionTableCannotBeFilled", "firewall.TestJoinedRulesetsAreAsWrittenAndTheKernelListsThem"}},
		{ID: "B40", Attack: "Ports, descriptors and the log flooded", Defence: "Fails closed; limits; folded logs", Tests: []string{"proxy.TestOutOfDescriptors", "proxy.TestTooManyConnectionsAreReset", "audit.TestFolding", "audit.TestAFloodOfDistinctDenialsIsBoundedAndCounted"}},
		{ID: "B41", Attack: "The agent runs before the rules", Defence: "Listeners and rules first; CMD is started last", Tests: []string{"sealed.TestCloseBeforeRelease", "sidecar.TestNothingIsInForceWhenTheFirstPolicyIsRefused", "e2e/containers.TestASidecarThatIsAttached"}},
		{ID: "B42", Attack: "The agent's container restarts into a new namespace", Defence: "The sidecar owns the namespace; an attached sandbox is not restarted", Tests: []string{"e2e/containers.TestARestartPolicyIsTakenAway"}},
		{ID: "B43", Attack: "Forged answers to our resolver", Defence: "127.0.0.11 and port 53 on lo are ours; fresh port, 0x20, id", Tests: []string{packetSuite, "firewall.TestTheEnginesDNSAnswersUsAndNobodyElse", "e2e/containers.TestTheProbeInAContainer", "dnsfilter.TestForgedRepliesAreWaitedOut", "e2e/containers.TestDockersDNSIsNoWayRound"}},
		{ID: "B44", Attack: "A capability that undoes everything", Defence: "Refused at the start, each named", Tests: []string{packetSuite, sealedSuite, "sealed.TestAnOrdinaryUserHasNoCapabilities", "sandbox.TestFindings", "e2e/containers.TestRefusals"}},
		{ID: "B45", Attack: "NET_RAW that forges the engine's DNS", Defence: "With NET_RAW that DNS is asked over TCP alone", Residual: "Where an engine's DNS answers over UDP only, and the sandbox has NET_RAW: refuse to start, or drop NET_RAW", Tests: []string{"firewall.TestTheEnginesDNSAnswersUsAndNobodyElse", "e2e/bypass.TestWithNETRAWTheEnginesDNSIsNeverAskedByUDP"}},
		{ID: "B46", Attack: "resolv.conf and hosts rewritten", Defence: "They are not read in the namespace", Tests: []string{"e2e/bypass.TestRewrittenResolverFilesChangeNothing", "e2e/containers.TestTheSandboxDoesNotChooseTheResolver"}},
		{ID: "B47", Attack: "A container that joins later and flushes the table", Defence: "Notifications are watched: reload, event", Tests: []string{packetSuite, sealedSuite, "firewall.TestForeignChangesToOurTablesAreNoticedAndOursAreNot", "e2e/joined.TestRulesThatSomebodyElseRemovesComeBackAndDenyEverything"}},
		{ID: "B48", Attack: "The engine's own lookups, sent from the namespace", Defence: "Rejected, never redirected to us", Tests: []string{"firewall.TestTheEnginesDNSAnswersUsAndNobodyElse", "e2e/containers.TestDockersDNSIsNoWayRound"}},
	}
}

// nameRows are about names and protocols.
func nameRows() []Row {
	return []Row{
		{ID: "B50", Attack: "An allowed SNI or Host at the attacker's address", Defence: "Our own resolution of the judged name is dialled", Tests: []string{namesSuite, "proxy.TestTLSIsJudgedByItsServerNameAndDialledToOurAddress"}},
		{ID: "B51", Attack: "A second request to another Host; pipelining", Defence: "Every request is judged", Tests: []string{namesSuite, "proxy.TestEachRequestOfAConnectionIsJudged"}},
		{ID: "B52", Attack: "Request smuggling", Defence: "A strict grammar; every request is written anew", Tests: []string{packetSuite, sealedSuite, "proxy.TestHostileRequests", "proxy.TestASmuggledRequestIsJudged"}},
		{ID: "B53", Attack: "Absolute form or CONNECT that disagrees with Host or SNI", Defence: "Equality, else name-mismatch", Tests: []string{packetSuite, sealedSuite, "proxy.TestConnectIsJudgedByItsAuthorityAndByWhatIsInside"}},
		{ID: "B54", Attack: "h2c by upgrade and by prior knowledge", Defence: "The upgrade is stripped; each stream is judged", Tests: []string{packetSuite, sealedSuite, "proxy.TestAnUpgradeToHTTP2IsStripped", "proxy.TestEachStreamIsJudged"}},
		{ID: "B55", Attack: "No SNI, or one that is no name; two names; SSLv2", Defence: "A strict grammar", Tests: []string{packetSuite, sealedSuite, "proxy.TestHostileClientHellos"}},
		{ID: "B56", Attack: "A ClientHello in pieces, or very large", Defence: "Reassembled to 64 KiB, with a deadline", Tests: []string{packetSuite, sealedSuite, "proxy.TestAClientHelloIsReadHoweverItIsCut"}},
		{ID: "B57", Attack: "Encrypted ClientHello", Defence: "The outer name is judged; `ech` is stripped from DNS", Tests: []string{packetSuite, sealedSuite, "proxy.TestNamesBesideAnECHAreAttributable", "dnsfilter.TestAnswersAreCheckedBeforeTheyAreGiven"}},
		{ID: "B58", Attack: "Opaque bytes on 80 and 443", Defence: "They must parse as HTTP or TLS", Tests: []string{packetSuite, sealedSuite, "proxy.TestBytesThatNeitherHTTPNorTLSAreReset"}},
		{ID: "B59", Attack: "Suffix tricks, other letters that look alike", Defence: "One normaliser; ASCII on the wire", Tests: []string{namesSuite, "proxy.TestHostileRequests"}},
		{ID: "B60", Attack: "Numeric hosts", Defence: "Judged as the address, or refused", Tests: []string{packetSuite, sealedSuite, "proxy.TestHostileRequests"}},
		{ID: "B61", Attack: "DNS messages that are not quite", Defence: "Exactly one question; rebuilt upstream", Tests: []string{packetSuite, sealedSuite, "dnsfilter.TestMalformedMessagesAreRefusedAndLogged", "dnsfilter.TestTheUpstreamQuestionIsRebuilt"}},
		{ID: "B62", Attack: "A tunnel in DNS", Defence: "Types, case and length are held; a budget", Tests: []string{packetSuite, sealedSuite, "dnsfilter.TestTheBudgetOfAWildcard", "dnsfilter.TestManyDomainsAreNoWayRoundTheBudget"}},
		{ID: "B63", Attack: "DNS over TCP, 853, DoH", Defence: "All of 53 comes to us; the others are names, judged", Tests: []string{packetSuite, sealedSuite, "dnsfilter.TestDenialsReachEveryTransport"}},
		{ID: "B64", Attack: "A name that resolves to what is denied; rebinding", Defence: "Addresses are checked on the answer and at the dial", Tests: []string{"proxy.TestAddressesAreCheckedBeforeTheyAreDialled", "dnsfilter.TestAnswersAreCheckedBeforeTheyAreGiven", "e2e/bypass.TestAnAllowedNameDoesNotLeadToASpecialAddress"}},
		{ID: "B65", Attack: "A denied name that is asked upstream", Defence: "Decided before any packet", Tests: []string{namesSuite, "e2e.TestADeniedNameIsNeverAskedUpstream"}},
		{ID: "B66", Attack: "Domain fronting inside an allowed CDN name", Defence: "None without interception", Residual: "The outer name was allowed; what is inside TLS is not seen", Tests: []string{"e2e/bypass.TestResidualsAreAsDocumented"}},
		{ID: "B67", Attack: "A tunnel through an allowed host", Defence: "Ports in targets narrow it", Residual: "The host was allowed", Tests: []string{"e2e/bypass.TestResidualsAreAsDocumented"}},
	}
}

// sealedRows are ways out of `exeat run` that do not touch the network.
func sealedRows() []Row {
	return []Row{
		{ID: "B70", Attack: "The control socket", Defence: "Hidden, and refused by the peer's namespaces", Tests: []string{sealedSuite, "control.TestAPeerInOtherNamespacesIsRefused", sealedAll}},
		{ID: "B71", Attack: "Sockets of engines, buses, agents, browsers", Defence: "Run directories are empty; listening paths are masked", Residual: "A socket that the host binds later, elsewhere than in the hidden directories", Tests: []string{sealedSuite, sealedAll}},
		{ID: "B72", Attack: "Lookups by somebody else (nscd, varlink)", Defence: "As B71; `hosts: files dns`", Tests: []string{sealedSuite, sealedAll}},
		{ID: "B73", Attack: "Signals, ptrace and memory of the engine", Defence: "A PID namespace; not dumpable", Tests: []string{sealedSuite, sealedAll}},
		{ID: "B74", Attack: "Socket families that no namespace holds; io_uring; foreign system calls", Defence: "A filter of system calls", Tests: []string{sealedSuite, sealedAll, "sealed.TestForeignSystemCallsAreKilled"}},
		{ID: "B75", Attack: "A nested user namespace", Defence: "No capability over the outer one", Tests: []string{sealedSuite, "sealed.TestANestedNamespaceLeadsNowhere"}},
		{ID: "B76", Attack: "Inherited descriptors", Defence: "All but 0 to 2 are closed", Tests: []string{sealedSuite, sealedAll, "sealed.TestStandardDescriptorsThatLeadOut"}},
		{ID: "B77", Attack: "Files that run outside later (shell files, hooks, cron)", Defence: "None: it is no matter of egress", Residual: "What the command may write it may have run later; give it a copy"},
		{ID: "B78", Attack: "Keystrokes forged on the terminal", Defence: "A filter of system calls", Tests: []string{"sealed.TestKeystrokesCannotBeForged"}},
		{ID: "B79", Attack: "Root's ways out: /proc/sys, sysrq, cgroups, devices", Defence: "Masked and read-only paths, as in a container", Tests: []string{sealedSuite, "sealed.TestRootIsHeldAsInAContainer"}},
	}
}
