package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// What the program answers to the shell; the help of the root command lists
// these.
const (
	exitOK    = 0
	exitNo    = 1 // what was asked for is not so: mistakes in a file, nobody to break, findings of doctor
	exitUsage = 2 // the command line
	exitRedis = 3 // Redis is out of reach, or refused
)

// failure is an error with its answer to the shell.
type failure struct {
	exit int
	err  error
	// lines: the error is one mistake a line, as compilers print them, and not
	// one line altogether.
	lines bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func no(format string, args ...any) error {
	return &failure{exit: exitNo, err: fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error {
	return &failure{exit: exitUsage, err: fmt.Errorf(format, args...)}
}

func backend(err error) error { return &failure{exit: exitRedis, err: err} }

// explain prints an error and gives the exit code.
func explain(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var f *failure
	exit, text := exitOf(err), ""
	if !errors.As(err, &f) && errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	if text == "" {
		text = strings.TrimPrefix(err.Error(), "automutex: ")
	}
	if f != nil && f.lines {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(stderr, printable.Text(line))
		}
		return exit
	}
	fmt.Fprintf(stderr, "automutex: %s\n", printable.OneLine(text))
	return exit
}

// exitOf is the exit code for an error. What cobra says is about the command
// line.
func exitOf(err error) int {
	var f *failure
	var file *fs.PathError
	switch {
	case errors.As(err, &f):
		return f.exit
	case errors.Is(err, lock.ErrBackend):
		return exitRedis
	case errors.Is(err, context.Canceled), errors.As(err, &file): // file: stdout is full or closed
		return exitNo
	}
	return exitUsage
}
