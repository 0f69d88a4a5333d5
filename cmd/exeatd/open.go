//go:build linux

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/firewall"
)

// newOpenCommand is what `exeat detach --open` runs, once no sidecar is there any
// more that would take it for an attack.
func newOpenCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "open",
		Short:  "Remove the rules from this network namespace: everything gets out",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			kernel, err := firewall.Open()
			if err != nil {
				return err
			}
			err = kernel.Delete(
				firewall.Table{Family: firewall.Inet, Name: firewall.TableName},
				firewall.Table{Family: firewall.Netdev, Name: firewall.TableName},
			)
			if err = errors.Join(err, kernel.Close()); err != nil {
				return fmt.Errorf("remove the rules: %w", err)
			}
			return nil
		},
	}
}
