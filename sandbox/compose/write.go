package compose

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"gopkg.in/yaml.v3"

	"github.com/exeat/exeat/sandbox"
)

// reset is a member that an override takes away.
type reset struct{}

// MarshalYAML implements yaml.Marshaler.
func (reset) MarshalYAML() (any, error) {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!reset", Value: "null"}, nil
}

// moved are the members of a service that belong to whoever has the namespace;
// engines refuse some of them on a container that joins one.
func moved() []string {
	return []string{"networks", "ports", "expose", "hostname", "domainname", "dns", "dns_search", "dns_opt", "extra_hosts", "links"}
}

// Override is a Compose file to merge onto the project's own: `docker compose -f
// compose.yaml -f override.yaml up`.
func (p *Plan) Override() ([]byte, error) {
	services := map[string]any{}
	for _, car := range p.sidecars {
		services[car.name] = p.sidecarService(car)
		for _, name := range car.services {
			services[name] = p.behind(name, car.name)
		}
	}
	return encode("# Written by exeat compose. Needs Docker Compose "+MinimumVersion+" or later (for older ones: --full):\n"+
		"#   docker compose -f YOUR-FILE -f THIS-FILE up\n", map[string]any{"services": services})
}

// Full is the project with its sidecars in one file, for a Compose that knows no
// !reset.
func (p *Plan) Full() ([]byte, error) {
	data, err := p.project.MarshalYAML()
	if err != nil {
		return nil, fmt.Errorf("write the project: %w", err)
	}
	var whole map[string]any
	if err := yaml.Unmarshal(data, &whole); err != nil {
		return nil, fmt.Errorf("write the project: %w", err)
	}
	delete(whole, "name") // which Compose 1 does not know
	services, ok := whole["services"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("write the project: its services are a %T", whole["services"])
	}
	for _, car := range p.sidecars {
		services[car.name] = p.sidecarService(car)
		for _, name := range car.services {
			service, ok := services[name].(map[string]any)
			if !ok {
				return nil, fmt.Errorf("write the project: service %s is a %T", name, services[name])
			}
			plainDependencies(service)
			for key, value := range p.behind(name, car.name) {
				switch value := value.(type) {
				case reset:
					delete(service, key)
				case []string:
					service[key] = append(anyList(service[key]), toAny(value)...)
				case map[string]any:
					service[key] = mergeMaps(service[key], value)
				default:
					service[key] = value
				}
			}
		}
	}
	return encode("# Written by exeat compose --full, in the place of the project's own files.\n", whole)
}

// plainDependencies leaves of depends_on what every Compose reads.
func plainDependencies(service map[string]any) {
	dependencies, ok := service["depends_on"].(map[string]any)
	if !ok {
		return
	}
	for _, d := range dependencies {
		if members, ok := d.(map[string]any); ok {
			delete(members, "required")
			delete(members, "restart")
		}
	}
}

func anyList(v any) []any {
	list, ok := v.([]any)
	if !ok {
		return nil
	}
	return list
}

func toAny(list []string) []any {
	all := make([]any, 0, len(list))
	for _, v := range list {
		all = append(all, v)
	}
	return all
}

func mergeMaps(into any, from map[string]any) map[string]any {
	merged := map[string]any{}
	if old, ok := into.(map[string]any); ok {
		maps.Copy(merged, old)
	}
	maps.Copy(merged, from)
	return merged
}

// behind is what changes in a service that is put behind a sidecar.
func (p *Plan) behind(name, car string) map[string]any {
	s := p.project.Services[name]
	service := map[string]any{
		"network_mode": types.ServicePrefix + car,
		"depends_on":   map[string]any{car: map[string]any{"condition": types.ServiceConditionHealthy}},
		"cap_drop":     []string{"NET_RAW", "NET_ADMIN"},
		"security_opt": []string{"no-new-privileges:true"},
	}
	has := map[string]bool{
		"networks": true, // there is a default one otherwise
		"ports":    len(s.Ports) > 0, "expose": len(s.Expose) > 0, "hostname": s.Hostname != "",
		"domainname": s.DomainName != "", "dns": len(s.DNS) > 0, "dns_search": len(s.DNSSearch) > 0,
		"dns_opt": len(s.DNSOpts) > 0, "extra_hosts": len(s.ExtraHosts) > 0, "links": len(s.Links) > 0,
	}
	for _, key := range moved() {
		if has[key] {
			service[key] = reset{}
		}
	}
	return service
}

// sidecarService is the sidecar as a service.
func (p *Plan) sidecarService(car sidecar) map[string]any {
	command := []string{"--control", sandbox.ControlSocket, "--state", sandbox.StateDir, "--name", car.name, "--sandbox-net-raw=no"}
	for _, port := range car.inbound {
		command = append(command, "--inbound="+port)
	}
	var hosts []string
	for _, h := range car.hosts {
		host, addr, _ := strings.Cut(h, "=")
		hosts = append(hosts, host+":"+addr)
	}
	service := map[string]any{
		"image": p.options.Image, "command": append(command, p.options.Sidecar...),
		"cap_drop": []string{"ALL"}, "cap_add": sandbox.SidecarCapabilities(true),
		"security_opt": []string{"no-new-privileges:true"}, "read_only": true,
		"tmpfs":   []string{sandbox.ControlMount},
		"volumes": append([]string{sandbox.StateDir}, p.options.Mounts...),
		"labels":  map[string]string{sandbox.LabelSidecar: car.name, sandbox.LabelNoNetRaw: "yes"},
		"healthcheck": map[string]any{
			"test": []string{"CMD", "/exeatd", "healthcheck"}, "interval": "1s", "timeout": "3s", "retries": 10, "start_period": "10s",
		},
	}
	if len(hosts) > 0 {
		service["extra_hosts"] = hosts
	}
	if len(car.ports) > 0 {
		var ports []string
		for _, port := range car.ports {
			ports = append(ports, shortPort(port))
		}
		service["ports"] = ports
	}
	if networks := car.networkMembers(); len(networks) > 0 {
		service["networks"] = networks
	}
	return service
}

func (c sidecar) networkMembers() map[string]any {
	members := map[string]any{}
	for _, network := range slices.Sorted(maps.Keys(c.networks)) {
		config := c.networks[network]
		member := map[string]any{"aliases": config.Aliases}
		if config.Ipv4Address != "" {
			member["ipv4_address"] = config.Ipv4Address
		}
		if config.Ipv6Address != "" {
			member["ipv6_address"] = config.Ipv6Address
		}
		members[network] = member
	}
	return members
}

// shortPort is a published port in the syntax that every Compose reads.
func shortPort(p types.ServicePortConfig) string {
	text := fmt.Sprint(p.Target)
	if p.Published != "" {
		text = p.Published + ":" + text
	}
	if p.HostIP != "" {
		host := p.HostIP
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		if p.Published == "" {
			text = ":" + text
		}
		text = host + ":" + text
	}
	if p.Protocol != "" && p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}

func encode(header string, document any) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(header)
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(document); err != nil {
		return nil, err
	}
	return out.Bytes(), enc.Close()
}
