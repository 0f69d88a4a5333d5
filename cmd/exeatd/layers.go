//go:build linux

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
)

// envPrefix begins the environment variables that are settings.
const envPrefix = "EXEAT_"

// layer fills the flags that the command line leaves out from the environment,
// and what that leaves out from the configuration file.
func (s *settings) layer(p *program, flags *pflag.FlagSet) error {
	env := map[string]string{}
	for _, pair := range p.environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, envPrefix) {
			env[name] = value
		}
	}
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := env[envName(f.Name)]
		if f.Changed || !ok || failed != nil {
			return
		}
		var list []string
		if _, isList := f.Value.(pflag.SliceValue); isList {
			list = strings.Fields(value)
		}
		failed = set(flags, f, value, list, envName(f.Name))
	})
	for name := range env {
		// Not an error: the environment is not ours alone.
		if flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-")); !isSetting(flag) && flag != "config" {
			fmt.Fprintf(p.err, "exeatd: warning: %s is no setting (exeatd --help lists the flags that each have a variable)\n", name)
		}
	}
	if failed != nil || s.config == "" {
		return failed
	}
	return s.layerFile(flags)
}

// envName is the variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// set gives a flag a value that did not come from the command line.
func set(flags *pflag.FlagSet, f *pflag.Flag, value string, list []string, from string) error {
	var err error
	if slice, isList := f.Value.(pflag.SliceValue); isList {
		if err = slice.Replace(list); err == nil {
			f.Changed = true
		}
	} else {
		err = flags.Set(f.Name, value)
	}
	if err != nil {
		return usagef("%s: %q: %w", from, value, err)
	}
	return nil
}

// maxConfig bounds the configuration file.
const maxConfig = 16 << 20

// layerFile reads the configuration file: its keys are the flags' names.
func (s *settings) layerFile(flags *pflag.FlagSet) error {
	data, err := readFile("--config", s.config, maxConfig)
	if err != nil {
		return err
	}
	var written map[string]any
	if err := toml.Unmarshal(data, &written); err != nil {
		return usagef("--config %s: %w", s.config, err)
	}
	for _, key := range slices.Sorted(maps.Keys(written)) {
		f := flags.Lookup(key)
		if f == nil || key == "config" {
			// A file is shared with healthcheck, which has few of the flags.
			if f == nil && isSetting(key) {
				continue
			}
			return usagef("--config %s: %s is no setting: want one of exeatd's flags, without the dashes (exeatd --help lists them)", s.config, key)
		}
		if f.Changed {
			continue
		}
		value, list, err := tomlValue(f, written[key])
		if err != nil {
			return usagef("--config %s: %s: %w", s.config, key, err)
		}
		if err := set(flags, f, value, list, "--config "+s.config+": "+key); err != nil {
			return err
		}
	}
	return nil
}

// isSetting says whether exeatd itself has the flag.
func isSetting(name string) bool {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(settings).register(all)
	return name != "config" && all.Lookup(name) != nil
}

// tomlValue is a value of the file as the flag takes it.
func tomlValue(f *pflag.Flag, written any) (value string, list []string, err error) {
	if _, isList := f.Value.(pflag.SliceValue); isList {
		items, ok := written.([]any)
		if !ok {
			return "", nil, fmt.Errorf("want an array of strings, not %v", written)
		}
		for _, item := range items {
			text, ok := item.(string)
			if !ok {
				return "", nil, fmt.Errorf("want strings in the array, not %v", item)
			}
			list = append(list, text)
		}
		return strings.Join(list, " "), list, nil
	}
	switch v := written.(type) {
	case string:
		return v, nil, nil
	case bool:
		if f.Value.Type() != "bool" {
			return "", nil, fmt.Errorf("want a string, not %v", v)
		}
		return fmt.Sprint(v), nil, nil
	case int64:
		return fmt.Sprint(v), nil, nil
	}
	return "", nil, fmt.Errorf("want a string, not %v", written)
}

// readFile reads a file that a setting names.
func readFile(setting, path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, usagef("%s: %w", setting, err)
	}
	if info.Size() > limit {
		return nil, usagef("%s %s: %d bytes, want at most %d", setting, path, info.Size(), limit)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("%s: %w", setting, err)
	}
	return data, nil
}
