//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "exeatd: network namespaces are Linux's: run it in a container")
	os.Exit(1)
}
