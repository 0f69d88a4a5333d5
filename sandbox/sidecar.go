package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// DefaultImage is the sidecar's image as `make image` names it.
const DefaultImage = "localhost/exeat"

// The labels by which sidecars are found again.
const (
	LabelSidecar  = "io.exeat.sidecar"  // the sidecar's name
	labelAttached = "io.exeat.attached" // the id of the container that it was attached to
	labelUnsafe   = "io.exeat.unsafe"   // what --unsafe let pass, one a line
	LabelNoNetRaw = "io.exeat.no-net-raw"
)

// StateDir is where exeatd keeps what is in force, so that a restart of its
// container goes on where it was and never where it began.
const StateDir = "/var/lib/exeat"

// ControlMount is what the control socket's directory is mounted as.
const ControlMount = "/run/exeat:rw,nosuid,nodev,noexec,size=1m,mode=0700"

// Spec says how a sidecar is started.
type Spec struct {
	// Name is the container's; Title, where it differs, what people call the sandbox.
	Name, Title string
	Image       string
	// Network is the network that the namespace is connected to; "" is the engine's
	// default. Attach, an id, joins that container's namespace instead.
	Network string
	Attach  string
	// Publish are published ports as `docker run -p` takes them.
	Publish []string
	// NoNetRaw says that no sandbox has NET_RAW, so that nothing has to hold it.
	NoNetRaw bool
	// FindResolver says that no resolver was named.
	FindResolver bool
	// Unsafe are findings that were let pass.
	Unsafe []Finding
	// EngineArgs are further arguments of the engine's run, Args of exeatd.
	EngineArgs, Args []string
}

// runArgs gives the engine's command line.
func (s Spec) runArgs() []string {
	args := []string{
		"run", "--detach", "--name", s.Name, "--label", LabelSidecar + "=" + cmp.Or(s.Title, s.Name),
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only",
		"--tmpfs", ControlMount,
		"--volume", StateDir,
	}
	for _, c := range SidecarCapabilities(s.NoNetRaw) {
		args = append(args, "--cap-add", c)
	}
	switch {
	case s.Attach != "":
		args = append(args, "--network", "container:"+s.Attach, "--label", labelAttached+"="+s.Attach)
	case s.Network != "":
		args = append(args, "--network", s.Network)
	}
	if s.NoNetRaw {
		args = append(args, "--label", LabelNoNetRaw+"=yes")
	}
	if len(s.Unsafe) > 0 {
		lines := make([]string, 0, len(s.Unsafe))
		for _, f := range s.Unsafe {
			lines = append(lines, f.String())
		}
		args = append(args, "--label", labelUnsafe+"="+strings.Join(lines, "\n"))
	}
	for _, p := range s.Publish {
		args = append(args, "--publish", p)
	}
	args = append(args, s.EngineArgs...)
	args = append(args, s.Image, "--control", ControlSocket, "--state", StateDir)
	if s.NoNetRaw {
		args = append(args, "--sandbox-net-raw=no")
	}
	if s.FindResolver && s.Attach == "" {
		args = append(args, "--resolver-from-file") // nobody has joined yet who could have written it
	}
	return append(args, s.Args...)
}

// SidecarCapabilities are what exeatd needs: NET_ADMIN throughout, the others
// only while it starts (its own uid, and to hold what NET_RAW could go round).
func SidecarCapabilities(noNetRaw bool) []string {
	capabilities := []string{"NET_ADMIN", "SETUID", "SETGID", "SETPCAP"}
	if !noNetRaw {
		capabilities = append(capabilities, "NET_RAW")
	}
	return capabilities
}

// InboundPort gives the port inside, with its protocol, of a published port as
// `docker run -p` takes it: [[IP:][HOST]:]PORT[/PROTOCOL].
func InboundPort(publish string) (string, error) {
	port := publish[strings.LastIndexByte(publish, ':')+1:]
	number, protocol, given := strings.Cut(port, "/")
	if number == "" || strings.Trim(number, "0123456789-") != "" || given && protocol != "tcp" && protocol != "udp" {
		return "", fmt.Errorf("published port %q: want [[IP:]HOST:]PORT[/tcp|udp]", publish)
	}
	return port, nil
}

// Sidecar is a container of exeatd's and those behind it.
type Sidecar struct {
	Container
	// Joined are the containers that are in its network namespace, or the one that
	// it was attached to and those in that one's.
	Joined []Container
}

// Title is what people call it.
func (s Sidecar) Title() string { return s.Labels[LabelSidecar] }

// NoNetRaw says that it was started with --sandbox-net-raw=no.
func (s Sidecar) NoNetRaw() bool { return s.Labels[LabelNoNetRaw] != "" }

// Unsafe are the findings that --unsafe let pass, one a line.
func (s Sidecar) Unsafe() []string {
	if s.Labels[labelUnsafe] == "" {
		return nil
	}
	return strings.Split(s.Labels[labelUnsafe], "\n")
}

// Findings looks at every container that is behind the sidecar now (bypass.md
// B47): one can join at any time. What --unsafe let pass is not found again.
func (s Sidecar) Findings() []Finding {
	var found []Finding
	for _, c := range s.Joined {
		attached := c.ID == s.Labels[labelAttached]
		for _, f := range Findings(c, Look{Joined: !attached, NetRaw: !s.NoNetRaw(), Userns: s.Userns, State: s.state(), Beside: s.Joined}) {
			if !slices.Contains(s.Unsafe(), f.String()) {
				found = append(found, f)
			}
		}
	}
	return found
}

// state is where the engine keeps its state volume.
func (s Sidecar) state() string {
	for _, m := range s.Mounts {
		if m.Destination == StateDir {
			return m.Source
		}
	}
	return ""
}

// Start starts a sidecar and waits until it has earned its readiness. One that
// does not is removed again, and what it said is the error: nothing is behind it yet.
func (e *Engine) Start(ctx context.Context, s Spec) (string, error) {
	if s.Image == "" {
		s.Image = DefaultImage
	}
	out, err := e.output(ctx, s.runArgs()...)
	if err != nil {
		// A container that was made but could not be started stays otherwise.
		return "", errors.Join(err, e.removeFailed(ctx, s.Name, err))
	}
	id := strings.TrimSpace(string(out))
	if err := e.WaitReady(ctx, id); err != nil {
		log := e.lastLines(ctx, id)
		return "", errors.Join(fmt.Errorf("the sidecar is not ready: %w%s", err, log), e.Remove(context.WithoutCancel(ctx), id))
	}
	return id, nil
}

// removeFailed removes the container of a run that failed, unless it failed
// because somebody else's has the name.
func (e *Engine) removeFailed(ctx context.Context, name string, cause error) error {
	if strings.Contains(cause.Error(), "already in use") {
		return nil
	}
	if err := e.Remove(context.WithoutCancel(ctx), name); !errors.Is(err, ErrNoContainer) {
		return err
	}
	return nil
}

// readyTimeout is how long a sidecar may take to become ready.
const readyTimeout = 60 * time.Second

// WaitReady waits until a sidecar is ready, or has ended.
func (e *Engine) WaitReady(ctx context.Context, container string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c := e.Client(container)
	defer c.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.Ready(ctx)
		var notReady *api.Error
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case !errors.As(err, &notReady) && !errors.Is(err, client.ErrUnreachable):
			return err
		}
		if found, inspectErr := e.Inspect(ctx, container); inspectErr != nil || !found[0].Running {
			return errors.Join(errors.New("it has ended"), inspectErr)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// lastLines gives the end of a container's log, indented.
func (e *Engine) lastLines(ctx context.Context, container string) string {
	cmd := e.Command(ctx, "logs", "--tail", "5", container)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "\n  (its log can't be read: " + err.Error() + ")"
	}
	return "\n  " + strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "\n  ")
}

// Remove ends and removes a container with what volumes are its own.
func (e *Engine) Remove(ctx context.Context, container string) error {
	_, err := e.output(ctx, "rm", "--force", "--volumes", container)
	var failed *CommandError
	if errors.As(err, &failed) && isMissing(failed.Said) {
		return fmt.Errorf("%w: %s", ErrNoContainer, container)
	}
	return err
}

// Attached is the id of the container that it was attached to; "" where it has
// the namespace for its own.
func (s Sidecar) Attached() string { return s.Labels[labelAttached] }

// Shut puts no-network in force, so that what the rules let straight out ends too
// when nobody is there any more.
func (e *Engine) Shut(ctx context.Context, s Sidecar) error {
	c := e.Client(s.ID)
	defer c.Close()
	_, err := c.Swap(ctx, api.SwapRequest{Policy: &policy.Document{Mode: policy.ModeNoNetwork}})
	return err
}

// Open removes the rules from the namespace of a container whose sidecar is gone,
// so that everything is let through. It is the one call that does.
func (e *Engine) Open(ctx context.Context, container, image string) error {
	_, err := e.output(ctx, "run", "--rm", "--network", "container:"+container, "--cap-drop", "ALL", "--cap-add", "NET_ADMIN",
		"--security-opt", "no-new-privileges", "--read-only", "--entrypoint", "/exeatd", image, "open")
	return err
}
