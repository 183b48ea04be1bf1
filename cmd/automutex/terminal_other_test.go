//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
)

// startInTerminal: the tests that need a terminal run on Linux.
func startInTerminal(*exec.Cmd, uint16, uint16) (*os.File, error) { return nil, errors.ErrUnsupported }

func resize(*os.File, uint16, uint16) error { return errors.ErrUnsupported }
