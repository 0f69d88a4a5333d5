package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildVersion is what the linker recorded about this binary.
type buildVersion struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(s *streams) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Example: "  exeat version\n  exeat version -o json",
		Args:    arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := readBuildVersion()
			if s.format == formatJSON {
				return s.json(v)
			}
			line := "exeat " + v.Version
			if v.Revision != "" {
				line += " " + v.Revision
			}
			if v.Modified {
				line += " (modified)"
			}
			return s.printf("%s %s %s\n", line, v.Go, v.Platform)
		},
	}
}

// readBuildVersion reads the module version and the commit that the go command
// stamps into binaries (go help buildvcs).
func readBuildVersion() buildVersion {
	v := buildVersion{
		Version:  "(devel)",
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Revision = setting.Value
		case "vcs.modified":
			v.Modified = setting.Value == "true"
		}
	}
	return v
}
