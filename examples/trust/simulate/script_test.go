package simulate

import (
	"bufio"
	"bytes"
	"crypto/sha1" // what Redis names scripts by
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// scripts runs Lua scripts on a miniredis, in its place: miniredis makes a Lua machine for
// each run of a script, with all of its libraries, which is most of what a world would
// cost. Here machines are used again. Errors have the text that Redis 7 gives them.
//
// It belongs to one redisServer, and is used with its mutex commands held.
type scripts struct {
	server *server.Server
	known  map[string]*lua.FunctionProto // by SHA-1

	// A script's own commands are dispatched to inner, which writes to reply.
	inner  *server.Peer
	writer *bufio.Writer
	reply  bytes.Buffer
}

func newScripts(s *server.Server) *scripts {
	c := &scripts{server: s, known: map[string]*lua.FunctionProto{}}
	c.writer = bufio.NewWriterSize(&c.reply, 512)
	c.inner = server.NewPeer(c.writer)
	s.Dispatch(c.inner, []string{"AUTH", password})
	c.inner.Flush()
	return c
}

// compiled are scripts by their text, for all worlds: a script is compiled once.
var compiled sync.Map

// machines are Lua machines without a script. A machine belongs to the run that took it.
var machines = sync.Pool{New: func() any { return newMachine() }}

// newMachine makes a machine with what scripts of Redis find there, as far as the library
// and asynq use it.
func newMachine() *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true, RegistrySize: 1024, RegistryMaxSize: 1 << 16, CallStackSize: 64})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	l.G.Global.RawSetString("redis", l.NewTable())
	return l
}

// handles tells whether run takes the command.
func (c *scripts) handles(command []string) bool {
	return (command[0] == "EVALSHA" || command[0] == "EVAL") && len(command) >= 3
}

// run answers EVALSHA and EVAL.
func (c *scripts) run(p *server.Peer, command []string) {
	sha := command[1]
	if command[0] == "EVAL" {
		sum := sha1.Sum([]byte(command[1]))
		sha = hex.EncodeToString(sum[:])
		proto, err := compile(command[1])
		if err != nil {
			p.WriteError("ERR Error compiling script (new function): " + err.Error())
			return
		}
		c.known[sha] = proto
	}
	proto := c.known[sha]
	if proto == nil {
		p.WriteError("NOSCRIPT No matching script. Please use EVAL.")
		return
	}
	keys, err := strconv.Atoi(command[2])
	if err != nil {
		panic(err) // the library's commands are well-formed
	}
	l := machines.Get().(*lua.LState)
	value, err := c.play(l, proto, command[3:3+keys], command[3+keys:])
	if err != nil {
		p.WriteError(scriptError(err, sha))
	} else {
		write(l, p, value)
	}
	l.SetTop(0)
	machines.Put(l)
}

func compile(script string) (*lua.FunctionProto, error) {
	if proto, ok := compiled.Load(script); ok {
		return proto.(*lua.FunctionProto), nil
	}
	chunk, err := parse.Parse(strings.NewReader(script), "user_script")
	if err != nil {
		return nil, err
	}
	proto, err := lua.Compile(chunk, "user_script")
	if err == nil {
		compiled.Store(script, proto)
	}
	return proto, err
}

// play runs a script and gives its first result.
func (c *scripts) play(l *lua.LState, proto *lua.FunctionProto, keys, args []string) (lua.LValue, error) {
	global := l.G.Global
	global.RawSetString("KEYS", list(l, keys))
	global.RawSetString("ARGV", list(l, args))
	redis := global.RawGetString("redis").(*lua.LTable)
	redis.RawSetString("call", l.NewFunction(func(l *lua.LState) int { return c.call(l, true) }))
	redis.RawSetString("pcall", l.NewFunction(func(l *lua.LState) int { return c.call(l, false) }))
	redis.RawSetString("error_reply", l.NewFunction(func(l *lua.LState) int {
		l.Push(single(l, "err", l.CheckString(1)))
		return 1
	}))
	redis.RawSetString("status_reply", l.NewFunction(func(l *lua.LState) int {
		l.Push(single(l, "ok", l.CheckString(1)))
		return 1
	}))
	l.Push(l.NewFunctionFromProto(proto))
	if err := l.PCall(0, 1, nil); err != nil {
		return nil, err
	}
	return l.Get(-1), nil
}

// list makes an array of texts.
func list(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

// single makes a table with one field, as an error or a status is one.
func single(l *lua.LState, field, text string) *lua.LTable {
	t := l.NewTable()
	t.RawSetString(field, lua.LString(text))
	return t
}

// call is redis.call, which raises an error, and redis.pcall, which returns it.
func (c *scripts) call(l *lua.LState, raises bool) int {
	args := make([]string, 0, 8)
	for i := 1; i <= l.GetTop(); i++ {
		if kind := l.Get(i).Type(); kind != lua.LTNumber && kind != lua.LTString {
			l.RaiseError("Lua redis lib command arguments must be strings or integers")
		}
		args = append(args, l.Get(i).String())
	}
	c.reply.Reset()
	c.server.Dispatch(c.inner, args)
	c.inner.Flush()
	value, _ := read(l, c.reply.Bytes())
	if t, ok := value.(*lua.LTable); ok && raises && t.RawGetString("err") != lua.LNil {
		l.Error(t, 1)
	}
	l.Push(value)
	return 1
}

// read makes a Lua value of a RESP2 reply, and tells how long the reply is.
func read(l *lua.LState, b []byte) (lua.LValue, int) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 1 {
		panic(fmt.Sprintf("simulate: not a reply: %q", b))
	}
	head, at := string(b[1:end]), end+2
	switch b[0] {
	case '+':
		return single(l, "ok", head), at
	case '-':
		return single(l, "err", head), at
	}
	n, err := strconv.Atoi(head)
	if err != nil {
		panic(fmt.Sprintf("simulate: not a reply: %q", b))
	}
	switch {
	case b[0] == ':':
		return lua.LNumber(n), at
	case n < 0:
		return lua.LFalse, at
	case b[0] == '$':
		return lua.LString(b[at : at+n]), at + n + 2
	}
	t := l.CreateTable(n, 0)
	for i := range n {
		value, length := read(l, b[at:])
		t.RawSetInt(i+1, value)
		at += length
	}
	return t, at
}

// write answers with a script's result, as Redis converts it.
func write(l *lua.LState, p *server.Peer, value lua.LValue) {
	switch v := value.(type) {
	case lua.LNumber:
		p.WriteInt(int(v))
	case lua.LString:
		p.WriteBulk(string(v))
	case *lua.LTable:
		if text := v.RawGetString("err"); text != lua.LNil {
			p.WriteError(text.String())
			return
		}
		if text := v.RawGetString("ok"); text != lua.LNil {
			p.WriteInline(text.String())
			return
		}
		n := 0
		for v.RawGetInt(n+1) != lua.LNil {
			n++
		}
		p.WriteLen(n)
		for i := range n {
			write(l, p, v.RawGetInt(i+1))
		}
	default:
		if value == lua.LTrue {
			p.WriteInt(1)
			return
		}
		p.WriteNull()
	}
}

// scriptError is the text of an error that ended a script.
func scriptError(err error, sha string) string {
	text := err.Error()
	var raised *lua.ApiError
	if errors.As(err, &raised) {
		text = "ERR " + strings.ReplaceAll(raised.Object.String(), "\n", " ")
		if t, ok := raised.Object.(*lua.LTable); ok {
			text = t.RawGetString("err").String()
		}
	}
	return text + " script: " + sha + ", on @user_script:1."
}
