package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/exeat/exeat/sandbox"
)

// MinimumVersion is the first Compose that knows !reset as an override needs it.
const MinimumVersion = "2.24.4"

// sidecarName is the service of the one sidecar.
const sidecarName = "exeat"

// Load reads Compose files as Compose does: merged, with variables, .env and
// extensions resolved.
func Load(ctx context.Context, files []string) (*types.Project, error) {
	options, err := cli.NewProjectOptions(files, cli.WithOsEnv, cli.WithDotEnv, cli.WithDefaultConfigPath, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(ctx)
}

// Options say how the services are put behind sidecars.
type Options struct {
	Image string
	// PerService gives each service a sidecar of its own.
	PerService bool
	// Sidecar are arguments of exeatd: the policy, and whatever else.
	Sidecar []string
	// Mounts are files that these arguments name, as SOURCE:TARGET.
	Mounts []string
}

// Plan is a project put behind sidecars.
type Plan struct {
	project  *types.Project
	options  Options
	sidecars []sidecar
}

// sidecar is one sidecar and the services behind it.
type sidecar struct {
	name     string
	services []string
	ports    []types.ServicePortConfig
	networks map[string]*types.ServiceNetworkConfig
	// hosts are extra lines of /etc/hosts, which all behind it share.
	hosts   []string
	inbound []string
}

// Problems is everything about a project that cannot be put behind a sidecar.
type Problems []string

// Error implements error: one problem a line.
func (p Problems) Error() string { return strings.Join(p, "\n") }

// Make plans the sidecars of a project.
func Make(project *types.Project, o Options) (*Plan, error) {
	o.Image = cmp.Or(o.Image, sandbox.DefaultImage)
	p := &Plan{project: project, options: o}
	var problems Problems
	names := slices.Sorted(maps.Keys(project.Services))
	if len(names) == 0 {
		return nil, errors.New("the project has no services")
	}
	for _, name := range names {
		problems = append(problems, serviceProblems(project, project.Services[name], o.PerService)...)
	}
	groups := map[string][]string{sidecarName: names}
	if o.PerService {
		groups = map[string][]string{}
		for _, name := range names {
			owner := namespaceOwner(project, name)
			groups[owner+"-"+sidecarName] = append(groups[owner+"-"+sidecarName], name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if _, taken := project.Services[name]; taken {
			problems = append(problems, fmt.Sprintf("service %s: the sidecar would be called so: rename it", name))
		}
		car, found := p.gather(name, groups[name])
		problems = append(problems, found...)
		p.sidecars = append(p.sidecars, car)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return p, nil
}

// namespaceOwner follows network_mode: service:… to the service that has a
// namespace of its own. A circle, which Compose refuses, ends where it began.
func namespaceOwner(project *types.Project, name string) string {
	for range project.Services {
		next, joined := strings.CutPrefix(project.Services[name].NetworkMode, types.ServicePrefix)
		if !joined {
			break
		}
		name = next
	}
	return name
}

// serviceProblems are what is wrong with one service by itself.
func serviceProblems(project *types.Project, s types.ServiceConfig, perService bool) []string {
	var problems []string
	find := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("service %s: ", s.Name)+fmt.Sprintf(format, args...))
	}
	mode := s.NetworkMode
	switch owner, joined := strings.CutPrefix(mode, types.ServicePrefix); {
	case mode == "", mode == "bridge", mode == "default":
	case joined:
		if _, there := project.Services[owner]; !there {
			find("network_mode %s: there is no such service", mode)
		}
	case mode == "none":
		find("network_mode none: it has no network to guard; take it out of the project, or take the line out")
	default:
		find("network_mode %s: it would not be behind the sidecar; take the line out", mode)
	}
	if n := s.GetScale(); n > 1 {
		find("%d replicas would share one namespace and its ports; want 1", n)
	}
	for name := range s.Sysctls {
		if strings.HasPrefix(name, "net.") {
			find("sysctl %s: the namespace is the sidecar's, which alone can set it", name)
		}
	}
	if s.MacAddress != "" {
		find("mac_address: the interface is the sidecar's; take the line out")
	}
	if s.Provider != nil {
		find("provider: it is a program of the host's and no container; take it out of the project")
	}
	for _, hook := range slices.Concat(s.PostStart, s.PreStop) {
		if hook.Privileged {
			find("a hook is privileged (%s), so it can change the rules; take the line out", strings.Join(hook.Command, " "))
		}
	}
	for _, from := range s.VolumesFrom {
		if container, outside := strings.CutPrefix(from, types.ContainerPrefix); outside {
			find("it has the volumes of container %s, which nobody looks at here; name those that it needs", container)
		}
	}
	for _, f := range sandbox.Findings(asContainer(project, s), sandbox.Look{Joined: true}) {
		find("%s; %s", f.What, f.Remedy)
	}
	return problems
}

// engineSocket is what use_api_socket gives a service.
const engineSocket = "/var/run/docker.sock"

// asContainer is a service as far as findings look at it.
func asContainer(project *types.Project, s types.ServiceConfig) sandbox.Container {
	c := sandbox.Container{
		Name: s.Name, Privileged: s.Privileged, PIDMode: s.Pid, IPCMode: s.Ipc, Userns: s.UserNSMode,
		DeviceRules: s.DeviceCgroupRules, Unmasked: sandbox.UnmaskedBy(s.SecurityOpt),
		Unfiltered: sandbox.UnfilteredBy(s.SecurityOpt),
	}
	for _, capability := range s.CapAdd {
		c.Capabilities = append(c.Capabilities, strings.TrimPrefix(strings.ToUpper(capability), "CAP_"))
	}
	// Of a capability that is both added and dropped, as an override drops NET_ADMIN
	// and NET_RAW, Docker heeds what is added.
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind {
			c.Mounts = append(c.Mounts, sandbox.Mount{Source: v.Source, Destination: v.Target})
		}
		// A volume may be a directory of the host's by another name.
		if device := project.Volumes[v.Source].DriverOpts["device"]; v.Type != types.VolumeTypeBind && device != "" {
			c.Mounts = append(c.Mounts, sandbox.Mount{Source: device, Destination: v.Target})
		}
	}
	if s.UseAPISocket { // and the credentials for registries with it
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: engineSocket, Destination: engineSocket})
	}
	// Those that are files are mounted as they are.
	for _, secret := range s.Secrets {
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: project.Secrets[secret.Source].File, Destination: secret.Target})
	}
	for _, config := range s.Configs {
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: project.Configs[config.Source].File, Destination: config.Target})
	}
	for _, d := range s.Devices {
		c.Devices = append(c.Devices, d.Source)
	}
	return c
}

// gather collects what moves from services to their sidecar.
func (p *Plan) gather(name string, services []string) (sidecar, []string) {
	car := sidecar{name: name, services: services, networks: map[string]*types.ServiceNetworkConfig{}}
	var problems []string
	listens := map[string]string{} // port → service
	for _, service := range services {
		s := p.project.Services[service]
		for _, port := range s.Ports {
			car.ports = append(car.ports, port)
			if other, taken := listens[portKey(port.Target, port.Protocol)]; taken && other != service {
				problems = append(problems, clash(other, service, portKey(port.Target, port.Protocol)))
			}
			listens[portKey(port.Target, port.Protocol)] = service
		}
		for _, expose := range s.Expose {
			port, protocol, _ := strings.Cut(expose, "/")
			key := port + "/" + cmp.Or(protocol, "tcp")
			if other, taken := listens[key]; taken && other != service {
				problems = append(problems, clash(other, service, key))
			}
			listens[key] = service
		}
		problems = append(problems, car.join(service, s, len(services) > 1)...)
		for host, addrs := range s.ExtraHosts {
			for _, addr := range addrs {
				car.hosts = append(car.hosts, host+"="+addr)
			}
		}
		if len(services) > 1 {
			car.hosts = append(car.hosts, service+"=127.0.0.1")
		}
	}
	car.inbound = slices.Sorted(maps.Keys(listens))
	slices.Sort(car.hosts)
	car.hosts = slices.Compact(car.hosts)
	return car, problems
}

func portKey(target uint32, protocol string) string {
	return fmt.Sprintf("%d/%s", target, cmp.Or(protocol, "tcp"))
}

func clash(a, b, port string) string {
	return fmt.Sprintf("services %s and %s both listen on %s, and would share one namespace: give one another port, or use --per-service", a, b, port)
}

// join connects the sidecar to a service's networks, under the service's names.
func (c *sidecar) join(service string, s types.ServiceConfig, shared bool) []string {
	var problems []string
	for network, config := range s.Networks {
		mine := c.networks[network]
		if mine == nil {
			mine = &types.ServiceNetworkConfig{}
			c.networks[network] = mine
		}
		mine.Aliases = append(mine.Aliases, service)
		if config == nil {
			continue
		}
		mine.Aliases = append(mine.Aliases, config.Aliases...)
		for kind, pair := range map[string][2]*string{
			"ipv4_address": {&mine.Ipv4Address, &config.Ipv4Address}, "ipv6_address": {&mine.Ipv6Address, &config.Ipv6Address},
		} {
			if *pair[1] != "" && *pair[0] != "" && *pair[0] != *pair[1] {
				problems = append(problems, fmt.Sprintf("service %s: %s %s in network %s: the namespace has %s already; take one out, or use --per-service", service, kind, *pair[1], network, *pair[0]))
			}
			*pair[0] = cmp.Or(*pair[0], *pair[1])
		}
	}
	for _, config := range c.networks {
		slices.Sort(config.Aliases)
		config.Aliases = slices.Compact(config.Aliases)
	}
	return problems
}
