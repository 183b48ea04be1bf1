/*
 * The order of a key (Rule.InOrder), as lua/order*.lua, order.go and client.go keep it: README.md beside this file
 * says how to run it and what it leaves out.
 *
 * One key; NT tasks; two producers, of which the first enqueues tasks 0 and 2; NW workers; asynq's forwarder and
 * recoverer; an operator. Each script of ours, each command of asynq's and each look is one step, and between any two
 * anything else may happen. There is no clock: what may be due may happen. Budgets bound the trouble.
 *
 *   default  safety
 *   -DLIVE   what comes by time alone comes when nothing else can happen, all at once (a tick). After K ticks
 *            everything is through, or an operator has to act. -DNOBACK: parked tasks do not come back by themselves,
 *            so that a lost call is seen.
 *
 * asynq 0.26: Enqueue refuses an ID that exists in any state. RunTask takes RETRY, ARCH and COMP to PENDING, and
 * refuses the rest. A worker's Done, Retry and Archive do nothing unless the task is ACTIVE. The recoverer retries or
 * archives the task of a dead worker. PRETRY is a RETRY that we parked: no attempt is spent.
 *
 * Planted mistakes, and what breaks:
 *   MUT_NOT_HEAD: that only the head gets the lock: the order
 *   MUT_NO_DONE: the mark done: a task that is done runs again
 *   MUT_OLD_LOOK: that a look counts only while nothing has changed since: the order
 *   MUT_LOOK_BY_ID: that a look compares nonces (-DREUSE): a stamp without a task stands for ever
 *   MUT_WITHDRAW_BY_ID: that a refused producer takes its own stamp out (-DREUSE): the order
 *   MUT_NO_CONFIRM: that a slow producer confirms its place: the order
 *   MUT_CLOCK: that nobody is skipped by a clock: the order
 *   MUT_COMPLETED: that a task which asynq has completed leaves (-DRETAIN): it stands for ever
 *   MUT_SILENT: that a release calls the head (-DNOBACK): a parked task stays parked
 *   MUT_CALL_RETRY: that only parked tasks are called: a failed one is run before its time
 */
#ifndef NT
#define NT 3
#endif
#ifndef NW
#define NW 2
#endif
#ifndef MAXR
#define MAXR 1          /* the caller's MaxRetry; asynq is told one more, the reserved attempt */
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef OPS
#define OPS 0           /* acts of the operator */
#endif
#ifndef LOSS
#define LOSS 0          /* of all keys */
#endif
#ifndef UNTOLD
#define UNTOLD 0        /* releases that do not reach Redis */
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifndef PLAIN
#define PLAIN 99        /* the task that a plain client enqueues, without a stamp */
#endif
#ifndef K
#define K 8
#endif

/* asynq's states */
#define NONE 0
#define PENDING 1
#define ACTIVE 2
#define RETRY 3
#define PRETRY 4
#define ARCH 5
#define COMP 6
#define GONE 7
/* the record of a stamp, with the letter of its state in lua/order.lua */
#define ABSENT 0
#define INTENT 1        /* i */
#define COMES  2        /* a */
#define PARKED 3        /* p, c */
#define HELD   4        /* h */
#define WAITS  5        /* w */
/* a worker */
#define IDLE 0
#define GOT 1           /* it has a task, and has not asked */
#define WAITING 2       /* in the worker */
#define RUN 3
#define FINOK 4         /* the release is over; before asynq's Done */
#define FINFAIL 5
#define FINARCH 6
#define PARKING 7       /* before asynq's Retry */
#define BACK 8          /* so, of a task that comes back by itself and spends no attempt */

/* Redis, ours. done, left: the marks; grant: the worker of the last grant, or who waits, + 1 (the token) */
byte m[NT]; byte num[NT]; byte grant[NT]; bit over[NT]; bit stale[NT]; bit done[NT]; bit left[NT];
byte next = 1; byte holder; byte whose; bit dead;  /* the holder's worker + 1 and task + 1; its process is dead, or has not released */
/* asynq's */
byte st[NT]; byte fails[NT]; bit orphan[NT]; bit comp[NT];
/* processes */
byte ppc[2]; byte cur[2];
byte wpc[NW]; byte wt[NW]; bit cut[NW];         /* cut: the context has ended, and asynq has noted the end */
bit call[NT];                                   /* a call is under way */
byte look; byte saw; byte was; bit due;         /* a look: the task + 1; what was seen + 1, 255: old news; its record then */
bit late[NT]; bit slow[NT];                     /* an Enqueue whose caller has given up; one that took too long */
/* budgets */
byte crashes = CRASHES; byte failb = FAILS; byte ops = OPS; byte loss = LOSS; byte untold = UNTOLD; byte touts = TIMEOUTS;
/* for the properties only */
bit returned[NT]; byte before[NT]; bit ok[NT]; bit fin[NT]; bit ran[NT]; bit landed[NT]; bit acted[NT]; bit lost; byte rounds;
hidden byte h, i, p, w, t, n; hidden byte b, mine;

#ifdef REUSE            /* task 2 has the TaskID of task 0 */
#define ID(x) ((x) == 2 -> 0 : (x))
#else
#define ID(x) (x)
#endif
#define RUNS(x) (holder != 0 && whose == (x) + 1)
#define IS_THERE(x) (grant[x] != 0 && wpc[grant[x] - 1] == WAITING && wt[grant[x] - 1] == x) /* who waits as x */
#define EACH(x) x : 0 .. NT - 1

/* ---- Redis: the scripts ---- */

inline head() { /* in h; NT: none */
	h = NT;
	for (EACH(i)) { if :: m[i] != ABSENT && (h == NT || num[i] < num[h]) -> h = i :: else fi }; skip
}
inline remove(x) { m[x] = ABSENT; over[x] = 0; stale[x] = 0; grant[x] = 0 }

inline advance() { /* lua/advance.lua */
	head();
	if
	:: h < NT && holder == 0 && m[h] == WAITS && !stale[h] -> /* a dead one too, until it is stale */
		holder = grant[h]; whose = h + 1; m[h] = COMES; dead = !IS_THERE(h)
	:: h < NT && holder == 0 && m[h] == PARKED -> call[h] = 1
#ifdef MUT_CALL_RETRY
	:: h < NT && holder == 0 && m[h] == COMES -> call[h] = 1
#endif
	:: else
	fi
}

inline start(who, x) { /* a handler begins */
	for (i : 0 .. NW - 1) { assert(lost || i == who || wpc[i] != RUN) }; /* one at a time */
	for (EACH(i)) { assert(lost || !((before[x] >> i) & 1) || ok[i]) }; /* after those whose Enqueue returned before */
	assert(lost || !fin[x] || acted[x] || x == PLAIN);                /* what is done does not run again by itself */
	ran[x] = 1; wpc[who] = RUN
}

inline ask() { /* lua/order_ask.lua: task t at worker w */
	if
	:: done[t] && !comp[t] && t != PLAIN -> remove(t); wpc[w] = FINOK /* comp: an operator runs it again */
	:: else ->
		if
		:: RUNS(t) && holder == w + 1 && !dead -> start(w, t)     /* the answer to one that was granted is "yours" */
		:: else ->
			if :: m[t] == ABSENT && t == PLAIN -> num[t] = next; next++ :: else fi;
			if :: m[t] == ABSENT -> m[t] = COMES :: else fi;
			over[t] = 0; stale[t] = 0;
#ifndef MUT_OLD_LOOK
			if :: look == t + 1 && saw != 0 -> saw = 255 :: else fi;
#endif
			head();
			if
#ifdef MUT_NOT_HEAD
			:: holder == 0 ->
#else
			:: holder == 0 && h == t ->
#endif
				m[t] = COMES; grant[t] = w + 1; holder = w + 1; whose = t + 1; dead = 0; start(w, t)
			:: RUNS(t) -> m[t] = COMES; grant[t] = holder; wpc[w] = BACK /* its earlier run */
#ifndef PARK_ONLY
			:: !RUNS(t) && (holder != 0 || h != t) -> m[t] = WAITS; grant[t] = w + 1; wpc[w] = WAITING; advance(); look_at()
#endif
#ifndef WAIT_ONLY
			:: !RUNS(t) && (holder != 0 || h != t) -> m[t] = PARKED; grant[t] = 0; wpc[w] = PARKING; advance(); look_at()
#endif
			fi
		fi
	fi
}
inline look_at() { /* advance names the head if it keeps others waiting: lua/look.lua. A called one is looked at as it is called. */
	if
	:: h < NT && holder == 0 && look == 0 && (m[h] == INTENT && over[h] || m[h] == COMES || m[h] == PARKED || m[h] == WAITS && stale[h]) ->
		look = h + 1; saw = 0; was = m[h]; due = over[h]
	:: else
	fi
}

inline release() { /* lua/order_release.lua, with what follows in it */
	if :: RUNS(t) && holder == w + 1 && !dead -> holder = 0; whose = 0; b = 1 :: else -> b = 0 fi;
	mine = (grant[t] == w + 1 && (m[t] == COMES || m[t] == WAITS))
}
inline stays() { release(); if :: mine -> m[t] = COMES; grant[t] = 0; stale[t] = 0 :: else fi }
inline end_done() {
	release(); fin[t] = 1; ok[t] = 1;
#ifndef MUT_NO_DONE
	if :: mine || b || m[t] == ABSENT -> done[t] = 1 :: else fi;
#endif
	if :: mine -> remove(t) :: else fi;
#ifndef MUT_SILENT
	advance();
#endif
	wpc[w] = FINOK
}
inline end_failed() {
	if
	:: fails[t] >= MAXR ->
		release(); wpc[w] = FINARCH;
#ifdef CONTINUE
		ok[t] = 1; if :: mine -> remove(t); left[t] = 1 :: else fi
#else
		if :: mine -> m[t] = HELD; grant[t] = 0 :: else fi
#endif
	:: else -> stays(); wpc[w] = FINFAIL
	fi;
#ifndef MUT_SILENT
	advance()
#else
	skip
#endif
}

inline act() { /* lua/order_act.lua: n is what was seen of t */
	if
#ifdef MUT_OLD_LOOK
	:: m[t] == ABSENT
#else
	:: m[t] == ABSENT || m[t] != was || RUNS(t)
#endif
	:: else ->
		if
		:: (n == NONE || n == GONE) && (m[t] != INTENT || due) ->
			if :: m[t] != HELD -> remove(t) :: else fi /* a ghost, or deleted; but a hold stays */
		:: n == ARCH ->
#ifdef CONTINUE
			ok[t] = 1; remove(t); left[t] = 1
#else
			m[t] = HELD; grant[t] = 0; over[t] = 0; stale[t] = 0
#endif
#ifndef MUT_COMPLETED
		:: n == COMP -> remove(t); left[t] = 1     /* finished, and we were not told */
#endif
		:: n == RETRY || m[t] != PARKED && (n == PENDING || n == ACTIVE || n == PRETRY) -> /* it comes by itself */
			if :: m[t] != HELD -> m[t] = COMES; grant[t] = 0; over[t] = 0; stale[t] = 0 :: else fi
		:: else
		fi
	fi;
	if :: n == PRETRY && m[t] != ABSENT && m[t] != HELD && m[t] != INTENT -> call[t] = 1 :: else fi; /* order.go: lookWake */
	advance()
}

/* ---- producers: client.go ---- */

inline conflict(x) { /* b: asynq has a task with that ID */
	b = 0;
	for (EACH(i)) { if :: i != x && ID(i) == ID(x) && st[i] != NONE && st[i] != GONE -> b = 1 :: else fi }; skip
}
inline stamp() {
	t = cur[p]; ppc[p] = 1;
	if
	:: t == PLAIN
	:: else ->
		for (EACH(i)) { if :: returned[i] -> before[t] = before[t] | (1 << i) :: else fi };
		num[t] = next; next++; m[t] = INTENT
	fi
}
inline enqueue() {
	t = cur[p]; conflict(t);
	if
	:: b -> /* refused */
		remove(t); done[t] = 1; slow[t] = 0;
#ifdef MUT_WITHDRAW_BY_ID
		for (EACH(i)) { if :: ID(i) == ID(t) -> remove(i) :: else fi };
#endif
		advance(); ppc[p] = 0; cur[p] = cur[p] + 2
	:: else ->
		landed[t] = 1; st[t] = PENDING;
#ifdef MUT_NO_CONFIRM
		slow[t] = 0;
#endif
		if
		:: slow[t] -> ppc[p] = 2
		:: else -> returned[t] = (t != PLAIN); ppc[p] = 0; cur[p] = cur[p] + 2
		fi
	fi
}
inline confirm() {
	t = cur[p];
	if :: m[t] == INTENT || m[t] == ABSENT && !done[t] && !left[t] -> m[t] = COMES; over[t] = 0 :: else fi;
	advance();
	returned[t] = 1; slow[t] = 0; ppc[p] = 0; cur[p] = cur[p] + 2
}
inline give_up(l) { late[cur[p]] = l; slow[cur[p]] = 0; ppc[p] = 0; cur[p] = cur[p] + 2 }
inline land(x) { late[x] = 0; conflict(x); if :: b :: else -> st[x] = PENDING; landed[x] = 1 fi }

/* ---- asynq ---- */

inline note() {
#ifdef RETAIN
	if :: st[t] == ACTIVE -> st[t] = COMP; comp[t] = 1 :: else fi
#else
	if :: st[t] == ACTIVE -> st[t] = GONE :: else fi
#endif
}
inline put_back(x, state) { if :: st[x] == ACTIVE -> st[x] = state :: else fi }
inline count(x) { if :: fails[x] <= MAXR -> fails[x]++; st[x] = RETRY :: else -> st[x] = ARCH fi }
inline crash(who) {
	if :: wpc[who] != IDLE && !cut[who] && st[wt[who]] == ACTIVE -> orphan[wt[who]] = 1 :: else fi;
	if :: holder == who + 1 && !dead -> dead = 1 :: else fi;
	wpc[who] = IDLE; cut[who] = 0; wt[who] = 0
}
inline run_task(x) {
	assert(st[x] != RETRY);                                           /* only what we parked is called */
	if :: st[x] == PRETRY -> st[x] = PENDING :: else fi
}

#define PRODUCER(q) \
	:: d_step { ppc[q] == 0 && cur[q] < NT -> p = q; stamp() } \
	:: d_step { ppc[q] == 1 -> p = q; enqueue() } \
	:: d_step { ppc[q] == 2 -> p = q; confirm() } \
	:: d_step { crashes > 0 && ppc[q] != 0 -> p = q; crashes--; give_up(0) } \
	:: d_step { crashes > 0 && ppc[q] == 1 -> p = q; crashes--; give_up(1) }

#define TAKE(k, x) :: d_step { wpc[k] == IDLE && st[x] == PENDING -> wpc[k] = GOT; wt[k] = x; st[x] = ACTIVE; orphan[x] = 0 }
#define ON(k) w = k; t = wt[k]
#define LEAVES(k) wpc[k] = IDLE; cut[k] = 0; wt[k] = 0

/* A waiter asks again each second: when that changes something. */
#define ASKS(k) (wpc[k] == GOT || wpc[k] == WAITING && (holder == k + 1 && whose == wt[k] + 1 && !dead || holder == 0 && m[wt[k]] != WAITS))
#define WORKER(k) \
	:: d_step { ASKS(k) -> ON(k); ask() } \
	:: d_step { wpc[k] == WAITING && holder == 0 -> ON(k); head(); if :: h == t -> ask() :: else fi } \
	:: d_step { MAY_LEAVE && wpc[k] == WAITING -> ON(k); stays(); advance(); wpc[w] = BACK } \
	:: d_step { wpc[k] == RUN && !cut[k] -> ON(k); end_done() } \
	:: d_step { wpc[k] == RUN && !cut[k] && failb > 0 -> ON(k); failb--; end_failed() } \
	:: d_step { wpc[k] == RUN && !cut[k] && untold > 0 -> ON(k); untold--; ok[t] = 1; if :: RUNS(t) && holder == w + 1 -> dead = 1 :: else fi; wpc[w] = FINOK } \
	:: d_step { wpc[k] == RUN && !cut[k] && touts > 0 && st[wt[k]] == ACTIVE -> ON(k); touts--; cut[w] = 1; count(t) } \
	:: d_step { wpc[k] == RUN && cut[k] -> ON(k); stays(); advance(); LEAVES(k) } \
	:: d_step { wpc[k] == FINOK -> t = wt[k]; note(); LEAVES(k) } \
	:: d_step { wpc[k] == FINFAIL -> t = wt[k]; if :: st[t] == ACTIVE -> st[t] = RETRY; fails[t]++ :: else fi; LEAVES(k) } \
	:: d_step { wpc[k] == FINARCH -> t = wt[k]; put_back(t, ARCH); LEAVES(k) } \
	:: d_step { wpc[k] == PARKING -> t = wt[k]; put_back(t, PRETRY); LEAVES(k) } \
	:: d_step { wpc[k] == BACK -> t = wt[k]; put_back(t, RETRY); LEAVES(k) } \
	:: d_step { crashes > 0 && wpc[k] != IDLE -> crashes--; crash(k) }

#ifdef MUT_CALL_RETRY
#define CALLED(x) :: d_step { call[x] -> call[x] = 0; run_task(x) }
#else /* a moment of patience until asynq has stored the Retry of what we parked; a call may be lost with its process */
#define CALLED(x) \
	:: d_step { call[x] && !(st[x] == ACTIVE && !orphan[x] && m[x] == PARKED) -> call[x] = 0; \
		if \
		:: st[x] == PRETRY -> run_task(x) \
		:: look == 0 && m[x] == PARKED && (st[x] == RETRY || st[x] >= ARCH) -> look = x + 1; was = m[x]; due = over[x] \
		:: else \
		fi } \
	:: d_step { call[x] && crashes > 0 -> crashes--; call[x] = 0 }
#endif

/* The operator deletes, runs, archives. */
#define OPERATOR(x) \
	:: d_step { ops > 0 && st[x] != NONE && st[x] != ACTIVE && st[x] != GONE -> ops--; st[x] = GONE; ok[x] = 1; acted[x] = 1 } \
	:: d_step { ops > 0 && (st[x] == RETRY || st[x] == PRETRY || st[x] == ARCH || st[x] == COMP) -> ops--; st[x] = PENDING; acted[x] = 1 } \
	:: d_step { ops > 0 && (st[x] == PENDING || st[x] == RETRY || st[x] == PRETRY || st[x] == COMP) -> ops--; st[x] = ARCH; acted[x] = 1 }

#ifdef MUT_CLOCK
#define SKIP_BY_CLOCK(x) remove(x); advance()
#else
#define SKIP_BY_CLOCK(x) skip
#endif
#ifdef LIVE
#define MAY_LEAVE 0
#define BY_TIME(x)
#else
#define MAY_LEAVE 1
#define BY_TIME(x) \
	:: d_step { st[x] == RETRY || st[x] == PRETRY -> st[x] = PENDING } \
	:: d_step { orphan[x] && st[x] == ACTIVE -> orphan[x] = 0; count(x) } \
	:: d_step { m[x] == WAITS && !stale[x] && !IS_THERE(x) -> stale[x] = 1 }
#endif
#define TASK(x) \
	TAKE(0, x) TAKE(1, x) CALLED(x) OPERATOR(x) BY_TIME(x) \
	:: d_step { late[x] -> land(x) } \
	:: d_step { m[x] == INTENT && !over[x] -> over[x] = 1; slow[x] = 1; SKIP_BY_CLOCK(x) }

init {
	d_step { cur[0] = 0; cur[1] = 1 }
endless:
	do
	PRODUCER(0) PRODUCER(1)
	WORKER(0) WORKER(1)
	TASK(0) TASK(1) TASK(2)

	/* a look at the head, and what follows from it */
	:: d_step { look != 0 && saw == 0 -> t = look - 1; saw = 1 + st[t];
#ifdef MUT_LOOK_BY_ID
		conflict(t); if :: b && (st[t] == NONE || st[t] == GONE) -> saw = 1 + PENDING :: else fi
#endif
	   }
	:: d_step { saw == 255 -> look = 0; saw = 0; was = 0; due = 0 }
	:: d_step { saw != 0 && saw != 255 -> t = look - 1; n = saw - 1; act(); look = 0; saw = 0; was = 0; due = 0 }
	:: d_step { look != 0 && crashes > 0 -> crashes--; look = 0; saw = 0; was = 0; due = 0 }

	/* SkipHead */
	:: d_step { ops > 0 -> head(); if :: h < NT && !RUNS(h) -> ops--; ok[h] = 1; remove(h); left[h] = 1; advance() :: else fi }
	/* a lease ends */
#ifndef LIVE
	:: d_step { holder != 0 && dead -> holder = 0; whose = 0; dead = 0 }
#endif
	:: d_step { loss > 0 -> loss--; lost = 1; holder = 0; whose = 0; dead = 0;
		for (EACH(i)) { remove(i); done[i] = 0; left[i] = 0 }; skip }
#ifdef LIVE
	:: timeout -> d_step {
		b = 1; head();
		for (EACH(i)) { if :: st[i] == PENDING || st[i] == ACTIVE || st[i] == RETRY || st[i] == PRETRY -> b = 0 :: else fi };
		if
		:: b -> for (EACH(i)) { assert(!landed[i] || ran[i] || acted[i] || st[i] == ARCH || ok[i]) }; skip /* none is lost */
		:: !b && h < NT && m[h] == HELD -> b = 1  /* an operator has to act */
		:: else ->
			rounds++; assert(rounds <= K);    /* all tasks end */
			if :: dead -> holder = 0; whose = 0; dead = 0 :: else fi;
			for (EACH(i)) {
				if :: m[i] == WAITS && !IS_THERE(i) -> stale[i] = 1 :: else fi;
				if
				:: st[i] == ACTIVE && orphan[i] -> orphan[i] = 0; count(i)
				:: st[i] == RETRY -> st[i] = PENDING
#ifndef NOBACK
				:: st[i] == PRETRY -> st[i] = PENDING
#endif
				:: else
				fi
			}; skip
		fi }
		if :: b -> break :: else fi
#endif
	od
}
