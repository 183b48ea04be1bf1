// Package check holds what ships against the programs that it is made for: the page of module web against a real
// browser, and the dashboard and alert rules of module metrics against Prometheus' own parser. It is a module of its
// own, outside of go.work, since its many requirements would decide the versions that the workspace builds with.
package check
