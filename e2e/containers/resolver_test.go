//go:build linux

package containers

import (
	_ "embed"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

//go:embed testdata/engine_dns.py
var engineDNS string

// userDefined makes a network of the user's own, with the engine's DNS in it.
func (e *engine) userDefined(t *testing.T) (network string) {
	t.Helper()
	network = "net" + serial()
	e.do(t, "network", "create", network)
	t.Cleanup(func() { e.try("network", "rm", network) })
	return network
}

// database starts a service that is called db, and has other names, in a network.
func (e *engine) database(t *testing.T, network string, aliases ...string) (container string) {
	t.Helper()
	flags := []string{"--network", network, "--network-alias", "db"}
	for _, a := range aliases {
		flags = append(flags, "--network-alias", a)
	}
	container = e.alone(t, flags...)
	e.do(t, "exec", "--detach", container, "python3", "-m", "http.server", "5432")
	eventually(t, func() bool { return e.reaches(container, "http://127.0.0.1:5432/") })
	return container
}

// gateway is where the engine's DNS is in a network of the user's own.
func (e *engine) gateway(t *testing.T, network string) string {
	t.Helper()
	if e == docker {
		return "127.0.0.11"
	}
	return e.do(t, "network", "inspect", "-f", "{{range .Subnets}}{{.Gateway}}{{end}}", network)
}

// TestTheResolverOfAUserDefinedNetwork: the one that the engine's DNS asks is
// found, or the one that is named is asked; a service has its name where that is
// listed, and only there. Over UDP and over TCP, in both join orders.
func TestTheResolverOfAUserDefinedNetwork(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		network := e.userDefined(t)
		e.database(t, network)
		dns := e.gateway(t, network)
		// Podman's DNS is outside of the namespace, and asked like any other.
		found, named := "upstream 203.0.113.53:53", "203.0.113.53"
		if e == podman {
			found, named = "upstream "+dns+":53", dns
		}
		for _, c := range []struct {
			name  string
			flags []string
		}{{"found", nil}, {"named", []string{"--resolver", named}}} {
			for _, order := range []string{"joined", "attached"} {
				t.Run(c.name+", "+order, func(t *testing.T) {
					flags := append([]string{"--allow", "pypi.test", "--allow", "db:5432"}, c.flags...)
					var name, box string
					if order == "joined" {
						name, box = e.up(t, append(flags, "--network", network)...)
					} else {
						box = e.alone(t, "--network", network)
						name = box
						e.exeat(t, append([]string{"attach", box}, flags...)...).want(t, 0)
					}
					e.exeat(t, "status", name).want(t, 0, found)
					for _, over := range []string{"udp", "tcp"} {
						e.in(box, "agent", "dns", over, dns+":53", "pypi.test", "A").want(t, 0, "NOERROR 1", "203.0.113.10")
						e.in(box, "agent", "dns", over, dns+":53", "db", "A").want(t, 0, "NOERROR 1")
						e.in(box, "agent", "dns", over, dns+":53", "evil.test", "A").want(t, 0, "EDE 15")
						e.in(box, "agent", "dns", over, dns+":53", "sidecar", "A").want(t, 0, "EDE 15")
					}
					e.in(box, "curl", "-sS", "-m", "20", "http://db:5432/").want(t, 0, "Directory listing")
					e.in(box, "curl", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
					e.exeatWith(t, `{"network_mode": "allowlist", "allowed_hosts": ["pypi.test"]}`, "policy", "set", name, "-").want(t, 0)
					if e.reaches(box, "http://db:5432/") {
						t.Error("a service that is not listed is reached")
					}
				})
			}
		}
	})
}

// engineDNSReport is what testdata/engine_dns.py prints.
type engineDNSReport struct {
	// Listening are the high ports of 127.0.0.11, High those that answered.
	Listening []int
	High      []string
	// Sent forgeries got out of their socket, Caught questions came to it.
	Sent, Caught  int
	Forged, Right []string
}

func (e *engine) triesEngineDNS(t *testing.T, box string, names []string) (report engineDNSReport) {
	t.Helper()
	r := e.inWith(engineDNS, box, append([]string{"python3", "-"}, names...)...).want(t, 0)
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	t.Logf("%+v", report)
	return report
}

// TestDockersDNSIsNoWayRound: B16, B43 and B48 against the real one.
func TestDockersDNSIsNoWayRound(t *testing.T) {
	docker.need(t)
	network := docker.userDefined(t)
	var names []string
	for i := range 8 {
		names = append(names, "db"+strconv.Itoa(i))
	}
	docker.database(t, network, names...)
	free := docker.triesEngineDNS(t, docker.alone(t, "--network", network), names)
	if len(free.High) != 2 || len(free.Forged) == 0 {
		t.Fatalf("unguarded, the ways round lead nowhere, so nothing would be proven: %+v", free)
	}
	flags := []string{"--network", network, "--allow", "pypi.test", "--allow", "nosuchservice"}
	for _, name := range names {
		flags = append(flags, "--allow", name)
	}
	for _, raw := range []string{"yes", "no"} {
		t.Run("the sandbox may have NET_RAW: "+raw, func(t *testing.T) {
			name, box := docker.up(t, append(flags, "--sandbox-net-raw", raw)...)
			report := docker.triesEngineDNS(t, box, names)
			if len(report.Listening) == 0 {
				t.Error("nobody listens on 127.0.0.11: the sandbox has no engine's DNS to try")
			}
			if len(report.High) > 0 {
				t.Errorf("B16: the engine's DNS answers on %v", report.High)
			}
			if report.Sent+report.Caught+len(report.Forged) > 0 || len(report.Right) != len(names) {
				t.Errorf("B43: %d forgeries sent, %d questions caught, forged %v, right %v", report.Sent, report.Caught, report.Forged, report.Right)
			}
			// B48: a label that the engine does not know it would ask of the world, from in here.
			before := len(world.Asked())
			r := docker.in(box, "agent", "dns", "udp", "127.0.0.11:53", "nosuchservice", "A").want(t, 0)
			if !strings.HasPrefix(r.stdout, "NXDOMAIN") && !strings.HasPrefix(r.stdout, "SERVFAIL") {
				t.Errorf("B48: nosuchservice: %s", r.stdout)
			}
			docker.in(box, "agent", "dns", "udp", "127.0.0.11:53", "evil.test", "A").want(t, 0, "EDE 15")
			for _, q := range world.Asked()[before:] {
				if q.Name == "nosuchservice" || q.Name == "evil.test" {
					t.Errorf("B48: the world was asked for %s", q.Name)
				}
			}
			docker.in(box, "curl", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
			docker.exeat(t, "status", name).want(t, 0, "ready")
		})
	}
}

// TestTheSandboxDoesNotChooseTheResolver: B46. It writes the files that it shares
// with the sidecar, and neither a new worker nor a new start goes by them.
func TestTheSandboxDoesNotChooseTheResolver(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		network := e.userDefined(t)
		name, box := e.up(t, "--network", network, "--allow", "pypi.test")
		check := func(t *testing.T) {
			t.Helper()
			spoil := "echo nameserver 203.0.113.66 > /etc/resolv.conf; echo 203.0.113.66 pypi.test >> /etc/hosts"
			e.in(box, "sh", "-ec", spoil).want(t, 0)
			before := len(world.Seen())
			e.in(box, "agent", "dns", "udp", "203.0.113.66:53", "pypi.test", "A").want(t, 0, "203.0.113.10")
			// Its own programs believe its file; what is dialled is what pypi.test resolves to.
			e.in(box, "curl", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
			for _, v := range world.Seen()[before:] {
				if strings.HasPrefix(v.To, "203.0.113.66:") {
					t.Errorf("%+v was reached", v)
				}
			}
		}
		t.Run("written while it runs", check)
		t.Run("a new worker", func(t *testing.T) {
			old := e.killWorker(t, name)
			eventually(t, func() bool {
				workers := e.workers(t, name)
				return len(workers) == 1 && !slices.Contains(workers, old) && e.exeat(t, "status", name).status == 0
			})
			check(t)
		})
		t.Run("a new start of the sidecar", func(t *testing.T) {
			e.in(name, "/exeatd", "healthcheck").want(t, 0)
			e.do(t, "kill", "--signal", "KILL", name)
			e.do(t, "start", name)
			eventually(t, func() bool { return e.exeat(t, "status", name).status == 0 })
			e.do(t, "restart", "--time", "0", box)
			check(t)
		})
	})
}

// workers are the processes of a sidecar that the keeper has started.
func (e *engine) workers(t *testing.T, sidecar string) (workers []int) {
	t.Helper()
	keeper := e.do(t, "inspect", "-f", "{{.State.Pid}}", sidecar)
	lists, err := filepath.Glob("/proc/" + keeper + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that has ended
		}
		for _, pid := range strings.Fields(string(data)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			workers = append(workers, n)
		}
	}
	return workers
}

// killWorker kills the one worker there is.
func (e *engine) killWorker(t *testing.T, sidecar string) int {
	t.Helper()
	workers := e.workers(t, sidecar)
	if len(workers) != 1 {
		t.Fatalf("workers %v, want one", workers)
	}
	if err := syscall.Kill(workers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return workers[0]
}
