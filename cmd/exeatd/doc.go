// Command exeatd is the sidecar that joins a sandbox's network namespace and
// decides what leaves it. This package is main only: settings, wiring, exit
// status; package sidecar does the work.
//
//	exeatd --allow pypi.org --allow files.pythonhosted.org --resolver 192.0.2.53
//
// Exit status: 0 stopped in order (or ready), 1 it could not start or is not
// ready, 2 usage or unreadable input.
package main
