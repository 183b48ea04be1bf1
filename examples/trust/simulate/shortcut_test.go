package simulate

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Nine in ten commands of a world come from servers that have nothing to do: asynq looks for
// tasks, and each Guard for controls, about once a second. The shortcut answers such a
// command without a connection. The command takes the same virtual time, is counted, and
// sees Redis as it is when the command would arrive. Where a fault can hit it, the command
// goes through a connection.

// shortcut answers cmd if it comes from a server that has nothing to do. Then cmd has the
// answer, and err is what go-redis would return. Otherwise cmd has still to be sent.
func (e *endpoint) shortcut(ctx context.Context, cmd redis.Cmder) (answered bool, err error) {
	var words [7]string
	command := wordsOf(cmd, words[:0])
	if !polls(command) || ctx.Err() != nil || e.redis.latency > 0 && !e.redis.isIdle(command) {
		return false, nil
	}
	severed, undisturbed := e.undisturbed()
	if !undisturbed {
		return false, nil
	}
	if !e.travels(severed) {
		return false, nil
	}
	answer, idle := e.redis.askIdle(command)
	if !idle || !e.travels(severed) {
		return false, nil
	}
	e.redis.spins(true)
	e.mu.Lock()
	e.note(command)
	e.mu.Unlock()
	return true, setAnswer(cmd, answer)
}

// polls tells whether a command can be one that idle answers.
func polls(command []string) bool {
	return len(command) >= 4 && (command[0] == "EVALSHA" || command[0] == "ZADD")
}

// wordsOf are the first words of a command. A word that is no text and no int, which no key
// is, is empty.
func wordsOf(cmd redis.Cmder, words []string) []string {
	for _, arg := range cmd.Args() {
		if len(words) == cap(words) {
			break
		}
		switch arg := arg.(type) {
		case string:
			words = append(words, arg)
		case int:
			words = append(words, strconv.Itoa(arg))
		default:
			words = append(words, "")
		}
	}
	switch words[0] {
	case "evalsha":
		words[0] = "EVALSHA"
	case "zadd":
		words[0] = "ZADD"
	}
	return words
}

// undisturbed tells whether no fault can hit the endpoint's next command: none goes on, none
// is to come with a command, and the pool of the client has no broken connection. severed is
// for travels.
func (e *endpoint) undisturbed() (severed int, ok bool) {
	frozen := time.Now().Before(e.redis.frozenUntil())
	e.mu.Lock()
	defer e.mu.Unlock()
	if frozen || e.gone || e.broken > 0 || len(e.conns) == 0 {
		return 0, false
	}
	for _, a := range e.active {
		if time.Now().Before(a.until) {
			return 0, false
		}
	}
	for _, f := range e.armed {
		if f.Nth > e.count {
			return 0, false
		}
	}
	return e.severed, true
}

// travels waits for as long as a command is under way, or its reply. It tells whether the
// connections of the endpoint have held: otherwise go-redis would send the command again.
func (e *endpoint) travels(severed int) bool {
	latency := e.latency()
	if latency == 0 {
		return true
	}
	time.Sleep(latency)
	now, ok := e.undisturbed()
	return ok && now == severed
}

// isIdle tells whether idle knows the answer.
func (s *redisServer) isIdle(command []string) bool {
	s.commands.Lock()
	defer s.commands.Unlock()
	_, idle := s.idle(command)
	return idle
}

// askIdle executes a command if idle knows the answer.
func (s *redisServer) askIdle(command []string) (answer any, idle bool) {
	s.commands.Lock()
	defer s.commands.Unlock()
	if answer, idle = s.idle(command); idle {
		s.executed++
	}
	return answer, idle
}

// setAnswer gives a command its reply, and returns what go-redis does with it.
func setAnswer(cmd redis.Cmder, answer any) error {
	switch cmd := cmd.(type) {
	case *redis.Cmd:
		if answer == nil {
			cmd.SetErr(redis.Nil)
			return redis.Nil
		}
		cmd.SetVal(answer)
	case *redis.IntCmd:
		cmd.SetVal(answer.(int64))
	}
	return nil
}
