package main

import "github.com/exeat/exeat/cmd/exeat/cli"

func main() { cli.Main() }
