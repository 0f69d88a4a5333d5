// Command agent is the untrusted program inside the sandbox that package torture
// drives: it reads jobs from its standard input, one a line, and writes what they
// say to its standard output, each line begun by the job's number.
//
//	echo '1 flows -n 50 -names t0.torture.test' | agent
package main
