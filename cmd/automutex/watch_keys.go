package main

import (
	"context"
	"io"
	"os"

	"golang.org/x/term"
)

// ctrlC is what Ctrl-C gives on a terminal that makes no signal of it.
const ctrlC = 0x03

// untilQ gives a context that also ends when q or Ctrl-C is pressed. The terminal stops
// echoing and hands over each key at once until restore is called. Where in is no
// terminal, parent is all that counts.
//
// A read of a terminal cannot be cancelled: the goroutine that reads keys ends with the
// program, or at the first key after restore, which it takes for nobody.
func untilQ(parent context.Context, in io.Reader) (ctx context.Context, listening bool, restore func()) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return parent, false, func() {}
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return parent, false, func() {} // signals still end the command
	}
	ctx, cancel := context.WithCancel(parent)
	go func() {
		key := make([]byte, 1)
		for ctx.Err() == nil {
			if _, err := f.Read(key); err != nil {
				return
			}
			switch key[0] {
			case 'q', 'Q', ctrlC:
				cancel()
			}
		}
	}()
	return ctx, true, func() {
		cancel()
		_ = term.Restore(int(f.Fd()), before) // the terminal may be gone
	}
}
