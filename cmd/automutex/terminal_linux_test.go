package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// startInTerminal starts cmd in a terminal of that size, and returns the side that shows and types. It uses x/sys
// and not creack/pty, which passes addresses on the stack to the kernel as numbers: when the stack
// moves meanwhile, the terminal's name comes out as that of another one.
func startInTerminal(cmd *exec.Cmd, columns, rows uint16) (screen *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	screen = os.NewFile(uintptr(fd), "ptmx")
	defer func() {
		if err != nil {
			_ = screen.Close()
		}
	}()
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, fmt.Errorf("the terminal's number: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, fmt.Errorf("unlock the terminal: %w", err)
	}
	if err := resize(screen, columns, rows); err != nil {
		return nil, err
	}
	program, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer program.Close() // the started program has its own
	cmd.Stdin, cmd.Stdout = program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return screen, cmd.Start()
}

// resize gives a terminal another size.
func resize(screen *os.File, columns, rows uint16) error {
	return unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
}
