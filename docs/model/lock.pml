/*
 * The lock and its line, as internal/engine keeps them: README.md beside this file says how
 * to run it and what it leaves out.
 *
 * A client is one call of Lock, with a token of its own. Its ask, the execution of
 * that ask in Redis, the reply and a grant's message are steps apart, and anything
 * may happen between them. Redis runs one script at a time, so a script is one step.
 *
 * Time is a number of ticks, the same for all: each timer below holds what is left
 * of it, so that the model has no clock and its states are finite. By default a
 * tick may come at any moment, and crash, loss and delay know no bounds. With
 * PROMPT they have, and time waits for what is due: then waits are bounded too.
 *
 * Above each inline stands what it models: the file, and the function or script
 * in it; or "environment" for what nobody programmed.
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef N
#define N 1             /* slots */
#endif
#ifndef TTL
#define TTL 3           /* the length of a lease, in ticks */
#endif
#ifndef G
#define G 2             /* maxGrant: the length of a granted one */
#endif
#ifndef STAY
#define STAY 3          /* the life of an entry that is not refreshed; a refresh comes each tick */
#endif
#ifndef WAIT
#define WAIT 40         /* the longest wait that PROMPT allows */
#endif
#ifndef CRASHES         /* how many PROMPT allows, and of the two below */
#define CRASHES 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef DELAYS
#define DELAYS 1
#endif

/* Planted mistakes, -DMUTANT_...: what is taken away, and what breaks then:
 *   RELEASE_ANYBODY: the token in a release: two beliefs
 *   RENEW_RETAKES: the look at the deadline in a renewal, and the client's at its own: two
 *     beliefs
 *   COUNT_FROM_MESSAGE, COUNT_FROM_REPLY: that a lease counts from before its ask was sent: two
 *     beliefs
 *   OLD_MESSAGE: that a message has to be newer than the last busy answer: two beliefs
 *   NO_REARM: that "yours" makes the stored deadline reach as far as the asker's: two beliefs
 *   GRANT_TO_THE_DEAD: the look whether the entry is stale: a grant to one long dead
 *   ASK_TWICE: that an ask sent twice is answered "yours" twice: one waits behind itself
 *   RELEASE_WITHOUT_GRANT: the grant in a release (without refreshes): a wait without end
 *   FENCE_STANDS: that the fence grows: the fence
 *   FENCE_BEFORE_SET: that a holder by SET has no fence: it has one that was read before: the
 *     fence
 *   FENCE_BY_CLOCK: that an ask sent twice has a fence of Redis' clock: one of the holder's own clock,
 *     with which the lock became fat: the fence
 *   SET_OVERWRITES: the NX of the SET: two beliefs
 *   INFLATE_FORGETS: the holder's deadline where a thin lock becomes fat: two beliefs
 *   DROP_OF_ANYBODY: the comparison in the release of a thin lock: two beliefs
 *   DEFLATE_HELD: that a lock which is held stays: two beliefs
 *   DEFLATE_WANTED: that a lock which others wait for stays (without refreshes): a wait without end
 */

/* What a client is about. */
#define NEW    0        /* has not asked */
#define FIRST  1        /* its first ask is under way */
#define LINE   2        /* in line */
#define HOLD   3        /* holds the lease, for as long as left says */
#define LEAVE  4        /* its release, or its leave, is under way */
#define OWES   5        /* a release failed, and is to be tried again */
#define DONE   6        /* over; what a late copy of an ask takes lasts for one lease */
#define DEAD   7

/* What a client has under way, and how far it has come. */
#define IDLE      0
#define ASK       1     /* sent */
#define YOURS     2     /* executed, the reply is on its way */
#define BUSY      3
#define RENEW     4
#define RENEWED   5
#define LOST      6
#define RELEASE   7
#define RELEASED  8
#define SET       9     /* SET NX: a thin lock, which is tried before an ask */
#define NIL       10

/* How a grant's message stands to the answers that its client has or is to have. */
#define NONE      0
#ifdef MUTANT_OLD_MESSAGE
#define OLD       1     /* older than the last busy answer */
#else
#define OLD       NONE  /* it proves nothing */
#endif
#define CROSSED   2     /* newer than that, older than the busy answer on its way */
#define FRESH     3     /* newer than both */

/* Redis. */
byte holder[CLIENTS];   /* h: what is left until the stored deadline; 0: no holder */
byte queue[CLIENTS];    /* e: those in line, by ticket */
byte queued;
byte alive[CLIENTS];    /* d: what is left until the entry is stale */
bit  thin;              /* the word is the holder's body, whose key expires at its deadline; nobody is in line */
bit  fat;               /* the word is fat: no SET NX passes, whoever there is */

/* The clients. */
byte is[CLIENTS];
byte net[CLIENTS];
byte since[CLIENTS];    /* TTL from the moment before the ask or renewal under way was sent */
byte asked[CLIENTS];    /* G from the moment before the last answered ask was sent (askedAt) */
byte left[CLIENTS];     /* until when the client believes that the lock is its own; 0: it does not */
byte hint[CLIENTS];
bit  gone[CLIENTS];     /* gave up while an ask was under way */

/* The network: messages, and the copy of a command (ASK, SET, RENEW, RELEASE) that may yet
 * be executed, for nobody who reads the reply: the connection broke, and the client
 * sent it again or gave up. One at a time; there is no end of them, one by one. */
byte message[CLIENTS];
byte late;
byte late_of;

/* For the properties only. */
byte dead_for[CLIENTS];

/* Of the step that runs: no part of a state. */
hidden byte slots, id, i, j, mine, in_set, believers;

#ifdef FENCE            /* looked at until so many were given */
byte fence = 1;         /* Redis' clock: the last fence of all */
byte worked;            /* the highest that anybody worked with */
bit  by_clock;          /* the fence in the word is by a holder's clock, which is behind */
bit  unfenced[CLIENTS]; /* holds without a fence: it took the lock by SET, whose reply has none */
byte reply_fence[CLIENTS];
byte message_fence[CLIENTS];
byte hint_fence[CLIENTS];
#endif

#ifdef PROMPT
byte crashes = CRASHES;
byte losses = LOSSES;
byte delays = DELAYS;
byte waited[CLIENTS];
bit  wake[CLIENTS];     /* a refresh is due at the next tick */
bit  due[CLIENTS];      /* is to ask again now */
bit  renewed[CLIENTS];  /* a holder renews once at most: then it has to release */
#define CAN(budget)    budget > 0
#define SPEND(budget)  budget--
#define ASK_SOON(c)    due[c] = 1
#else
#define CAN(budget)    true
#define SPEND(budget)  skip
#define ASK_SOON(c)    skip    /* it asks at any moment */
#endif

/* What is asserted beside the one thing that counts: -DBELIEFS_ONLY leaves it out, to
 * see what a mutant comes to in the end. */
#ifdef BELIEFS_ONLY
#define CHECK(x)  skip
#else
#define CHECK(x)  assert(x)
#endif

#ifdef FENCE
#define LOOKED_AT    (fence < FENCE)
#define FENCE_OF(x)  x ## _fence[c]
#define NO_FENCE(c)  unfenced[c] = 0; reply_fence[c] = 0
#else
#define LOOKED_AT    true
#define FENCE_OF(x)  0
#define NO_FENCE(c)  skip
#endif

#define EACH(c)  c : 0 .. CLIENTS - 1

/* environment: a client's wait is over */
inline unwait(c) {
	hint[c] = NONE; message[c] = NONE; asked[c] = 0; gone[c] = 0;
#ifdef PROMPT
	waited[c] = 0; wake[c] = 0; due[c] = 0
#endif
}

/* environment: whether c has an entry, in id (1) */
inline in_line(c) {
	id = 0;
	for (j : 0 .. CLIENTS - 1) {
		if
		:: j < queued && queue[j] == c -> id = 1
		:: else
		fi
	}
}

/* ---- Redis: the scripts ---------------------------------------------------- */

/* lua/hold.lua. The model has no holder whose deadline has passed, for every script
 * drops those first or looks at the deadline. */
inline hold(c, length) {
	if :: holder[c] < length -> holder[c] = length :: else fi;
	in_set = 0;
	for (j : 0 .. CLIENTS - 1) {
		if :: holder[j] > 0 -> in_set++ :: else fi
	};
	CHECK(in_set <= N)                              /* the set never has more than N holders */
#ifdef FENCE
	;
#ifndef MUTANT_FENCE_STANDS
	fence++
#endif
#endif
}

/* engine.go: ask. SET NX takes the lock if there is no word. The reply is left
 * in mine: YOURS or NIL. */
inline set(c) {
	mine = NIL;
	if
#ifdef MUTANT_SET_OVERWRITES
	:: !fat ->
		for (j : 0 .. CLIENTS - 1) {
			holder[j] = 0
		};
#else
	:: !fat && !thin ->
#endif
		holder[c] = TTL;
		thin = 1;
		mine = YOURS
	:: else -> skip
	fi
}

/* lua/head.lua: the lock becomes fat, so that others can join the holder. */
inline inflate() {
#ifdef MUTANT_INFLATE_FORGETS
	if
	:: thin ->
		for (j : 0 .. CLIENTS - 1) {
			holder[j] = 0
		}
	:: else -> skip
	fi;
#endif
#ifdef FENCE
	by_clock = thin;
#endif
	thin = 0;
	fat = 1
}

/* lua/settle.lua: who finds nothing left deletes it all. */
inline settle_keys() {
	in_set = 0;
	for (j : 0 .. CLIENTS - 1) {
		if :: holder[j] > 0 -> in_set++ :: else fi
	};
	if
#ifdef MUTANT_DEFLATE_HELD
	:: queued == 0 ->
		for (j : 0 .. CLIENTS - 1) {
			holder[j] = 0
		};
		fat = 0
#endif
#ifdef MUTANT_DEFLATE_WANTED
	:: in_set == 0 -> fat = 0; queued = 0
#else
	:: in_set == 0 && queued == 0 -> fat = 0
#endif
	:: else -> skip
	fi
}

/* environment: the fence in the word is Redis' own again */
inline given() {
#ifdef FENCE
	by_clock = 0
#else
	skip
#endif
}

/* lua/grant.lua */
inline grant(asker) {
	mine = 0;
	do
	:: true ->
		slots = N;
		for (j : 0 .. CLIENTS - 1) {
			if :: holder[j] > 0 && slots > 0 -> slots-- :: else fi
		};
		if :: slots == 0 || queued == 0 -> break :: else fi;
		id = queue[0];
		queued--;
		for (j : 0 .. CLIENTS - 2) { queue[j] = queue[j + 1] };
		queue[CLIENTS - 1] = 0;
		if
		:: id == asker -> alive[id] = 0; given(); hold(id, TTL); mine = 1
#ifdef MUTANT_GRANT_TO_THE_DEAD
		:: id != asker ->
#else
		:: id != asker && alive[id] > 0 ->
#endif
			CHECK(dead_for[id] <= STAY);   /* the dead are not granted for ever */
			alive[id] = 0;
			given();
			hold(id, G);
			publish(id)
		:: else -> skip                         /* stale: dropped */
		fi
	od;
	id = 0
}

/* lua/send.lua */
inline publish(c) {
	if
	:: is[c] == FIRST || is[c] == LINE ->
		message[c] = FRESH;
#ifdef FENCE
		message_fence[c] = fence
#endif
	:: else -> skip                                 /* nobody listens any more */
	fi
}

/* lua/ask.lua. The reply is left in mine: YOURS or BUSY. */
inline ask(c) {
	if :: is[c] == DEAD -> dead_for[c] = 0 :: else fi; /* a late copy of its last sign of life */
	mine = 0;
	if :: !(!fat && !thin) && holder[c] == 0 -> inflate() :: else fi;
	if
	:: !fat && !thin -> /* nobody is there: thin, with a fence */
		holder[c] = TTL;
		thin = 1;
#ifdef FENCE
#ifndef MUTANT_FENCE_STANDS
		fence++;
#endif
#endif
		mine = 1
#ifdef MUTANT_ASK_TWICE
	:: false
#else
	:: holder[c] > 0 && thin ->
#ifndef MUTANT_NO_REARM
		holder[c] = TTL;
#endif
#ifdef FENCE
		fence++;
#endif
		mine = 1
	:: holder[c] > 0 && fat ->
#ifndef MUTANT_NO_REARM
		hold(c, TTL);
#endif
		mine = 1
#endif
	:: else ->
		grant(c);
		if
		:: mine -> skip
		:: !mine && slots > 0 -> given(); hold(c, TTL); mine = 1
		:: else ->
			CHECK(holder[c] == 0);         /* nobody waits behind itself */
			in_line(c);
			if :: id == 0 -> queue[queued] = c; queued++ :: else fi;
			alive[c] = STAY
		fi
	fi;
	mine = (mine -> YOURS : BUSY)
}

/* lua/release.lua, and drop.lua for a thin lock */
inline release(c) {
	if
#ifdef MUTANT_DROP_OF_ANYBODY
	:: thin ->
		for (j : 0 .. CLIENTS - 1) {
			holder[j] = 0
		};
		thin = 0
#else
	:: thin && holder[c] > 0 -> thin = 0
#endif
	:: else -> skip
	fi;
	in_line(c);
	if
	:: id == 1 ->
		i = 0;
		for (j : 0 .. CLIENTS - 1) {            /* the others move up */
			if
			:: j < queued && queue[j] != c -> queue[i] = queue[j]; i++
			:: else
			fi
		};
		queued = i;
		for (j : 0 .. CLIENTS - 1) {
			if :: j >= queued -> queue[j] = 0 :: else fi
		};
		alive[c] = 0
	:: else
	fi;
#ifdef MUTANT_RELEASE_ANYBODY
	for (j : 0 .. CLIENTS - 1) {
		holder[j] = 0
	};
#else
	holder[c] = 0;
#endif
#ifndef MUTANT_RELEASE_WITHOUT_GRANT
#ifndef MUTANT_DEFLATE_WANTED
	grant(CLIENTS);
#endif
#endif
	settle_keys()
}

/* lua/renew.lua. The reply is left in mine: RENEWED or LOST. */
inline renew(c) {
	mine = LOST;
	if
#ifdef MUTANT_RENEW_RETAKES
	:: true -> hold(c, TTL); mine = RENEWED
#else
	:: holder[c] > 0 -> holder[c] = (holder[c] < TTL -> TTL : holder[c]); mine = RENEWED
#endif
	:: else -> skip
	fi
}

/* ---- the client ------------------------------------------------------------- */

/* lease.go: moveDeadline. The lease is believed for length from now on. */
inline reach(c, length) {
	left[c] = length;
	believers = 0;
	for (j : 0 .. CLIENTS - 1) {
		if :: left[j] > 0 -> believers++ :: else fi
	};
	assert(believers <= N)                          /* no two live beliefs */
}

#ifdef FENCE
/* environment: c works with a fence: above all before, or its lease is over, and then
 * below that of who works now */
inline work(c, with_fence) {
	if
	:: left[c] > 0 -> assert(with_fence > worked)   /* the fence grows from holder to holder */
	:: else ->
		for (j : 0 .. CLIENTS - 1) {
			assert(left[j] == 0 || unfenced[j] || with_fence < worked)
		}
	fi;
	if :: with_fence > worked -> worked = with_fence :: else fi
}
#endif

/* lease.go: hold */
inline add(c, length, with_fence) {
	is[c] = HOLD;
	reach(c, length);
	unwait(c)
#ifdef FENCE
	;
	if
	:: left[c] > 0 && with_fence > 0 -> work(c, with_fence)
	:: else -> unfenced[c] = (left[c] > 0)
	fi;
	message_fence[c] = 0; hint_fence[c] = 0
#endif
}

/* internal/engine/turn.go: takeGrant */
inline take(c) {
	if
#ifdef MUTANT_OLD_MESSAGE
	:: hint[c] != NONE ->
#else
	:: hint[c] == FRESH ->
#endif
		if
#ifdef MUTANT_COUNT_FROM_MESSAGE
		:: true -> add(c, G, FENCE_OF(hint))
#else
		:: 2 * asked[c] >= G -> add(c, asked[c], FENCE_OF(hint))
#endif
		:: else -> ASK_SOON(c)                  /* asks again: the answer re-arms the lease */
		fi
	:: else -> skip
	fi
}

/* line.go: wait. with is ASK, or SET for a key that nobody else wanted lately. */
inline wait(c, with) {
#ifdef PROMPT
	renewed[c] = 0;
#endif
#ifdef MUTANT_FENCE_BEFORE_SET
	fence++;
	reply_fence[c] = fence;
#endif
	is[c] = FIRST;
	net[c] = with;
	since[c] = TTL
}

/* engine.go: ask. The SET was in vain, or is ours and its reply was lost: an ask tells. */
inline ask_after_set(c) {
	net[c] = ASK;
	since[c] = TTL
}

/* engine.go: ring */
inline ring(c) {
#ifdef PROMPT
	due[c] = 0;
#endif
	net[c] = ASK;
	since[c] = TTL
}

/* line.go: handleReply. An answer has come. */
inline settle(c) {
	if
	:: gone[c] -> depart(c)
#ifdef MUTANT_COUNT_FROM_REPLY
	:: !gone[c] && net[c] == YOURS -> add(c, TTL, FENCE_OF(reply)); net[c] = IDLE
#else
	:: !gone[c] && net[c] == YOURS -> add(c, since[c], FENCE_OF(reply)); net[c] = IDLE
#endif
	:: !gone[c] && net[c] == BUSY ->
		is[c] = LINE;
		net[c] = IDLE;
		asked[c] = (since[c] > TTL - G -> since[c] - (TTL - G) : 0);
		if :: hint[c] == CROSSED -> hint[c] = OLD :: else fi;
		if :: message[c] == CROSSED -> message[c] = OLD :: else fi;
#ifdef PROMPT
		wake[c] = 1;
#endif
		take(c)
	fi;
	since[c] = 0;
#ifdef FENCE
	reply_fence[c] = 0
#endif
}

/* line.go: note */
inline hear(c) {
	hint[c] = message[c];
	message[c] = NONE;
#ifdef FENCE
	hint_fence[c] = message_fence[c];
	message_fence[c] = 0;
#endif
	if
	:: is[c] == LINE && net[c] == IDLE -> take(c)
	:: else -> skip
	fi
}

/* line.go: leave */
inline leave(c) {
	if
	:: net[c] == IDLE -> depart(c)
	:: else -> gone[c] = 1                          /* the answer first: settle has it leave */
	fi
}

/* line.go: act, a step that leaves */
inline depart(c) {
	unwait(c);
	is[c] = LEAVE;
	net[c] = RELEASE
}

/* lease.go: sendRenewals */
inline renewal(c) {
	net[c] = RENEW;
	since[c] = TTL
}

/* lease.go: sawRenewal. Redis has said yes; what ended meanwhile stays so. */
inline extended(c) {
	net[c] = IDLE;
#ifndef MUTANT_RENEW_RETAKES
	if :: left[c] == 0 -> since[c] = 0 :: else fi;
#endif
	if :: since[c] > left[c] -> reach(c, since[c]) :: else fi;
	since[c] = 0
}

/* lease.go: lose */
inline lose(c) {
	net[c] = IDLE;
	left[c] = 0;
	since[c] = 0
}

/* lease.go: Release. A renewal that is under way stays there, for nobody. */
inline end(c) {
	linger(c);
	NO_FENCE(c);
	left[c] = 0;
	since[c] = 0;
	is[c] = LEAVE;
	net[c] = RELEASE
}

/* lease.go: Release. Its answer has come. A copy of an ask that comes later takes the lock
 * for one lease: what a crash may do, a lost reply may do. */
inline confirmed(c) {
	net[c] = IDLE;
	is[c] = DONE
}

/* engine.go: loseReply, and Release. The outcome of the first ask, or of a release, is not known. */
inline abandon(c) {
	since[c] = 0;
	if
	:: is[c] == FIRST -> depart(c)
	:: is[c] == LEAVE -> is[c] = OWES; net[c] = IDLE
	fi
}

/* engine.go: releaseUntil. The release is tried again. */
inline release_again(c) {
	is[c] = LEAVE;
	net[c] = RELEASE
}

/* ---- the network and other trouble --------------------------------------------- */

/* environment: what was sent and not executed may be executed later, for nobody */
inline linger(c) {
	if
	:: late == IDLE && (net[c] == ASK || net[c] == SET || net[c] == RENEW || net[c] == RELEASE) -> late = net[c]; late_of = c
	:: else
	fi
}

/* environment: whether c's ask is under way, in whatever state */
#define ASKING(c)     (net[c] == ASK || net[c] == SET || net[c] == NIL || net[c] == YOURS || net[c] == BUSY)
#define RENEWING(c)   (net[c] == RENEW || net[c] == RENEWED || net[c] == LOST)
#define RELEASING(c)  (net[c] == RELEASE || net[c] == RELEASED)

/* environment: an ask that was not answered; messages are newer than any answer to come */
inline unanswered(c) {
	if
	:: ASKING(c) ->
		if :: hint[c] == CROSSED -> hint[c] = FRESH :: else fi;
		if :: message[c] == CROSSED -> message[c] = FRESH :: else fi;
#ifdef FENCE
		reply_fence[c] = 0
#endif
	:: else
	fi
}

/* environment: the connection breaks, and the client sends the command once more;
 * its own clock has counted from the first time. (A SET that was answered YOURS is ours
 * for the ask as for the SET that is sent again: that is answered NIL, and an ask follows.) */
inline resend(c) {
	linger(c);
	unanswered(c);
	if
	:: net[c] == SET || net[c] == NIL -> net[c] = SET
	:: else -> net[c] = (ASKING(c) -> ASK : (RENEWING(c) -> RENEW : RELEASE))
	fi
}

/* environment: the connection breaks, and the command fails */
inline fail(c) {
	linger(c);
	unanswered(c);
	if
	:: is[c] == LINE && gone[c] -> since[c] = 0; depart(c)
	:: is[c] == LINE && !gone[c] -> since[c] = 0; net[c] = IDLE; ASK_SOON(c)
	:: is[c] == HOLD -> since[c] = 0; net[c] = IDLE
	:: else -> abandon(c)
	fi
}

/* environment: the process dies */
inline crash(c) {
	linger(c);
	unwait(c);
	is[c] = DEAD;
	net[c] = IDLE;
	left[c] = 0; since[c] = 0;
	NO_FENCE(c);
#ifdef FENCE
	message_fence[c] = 0; hint_fence[c] = 0
#endif
}

/* environment: whether a copy of a command of c's is about */
#define LATE(c)   (late != IDLE && late_of == c)

#define DOWN(x)   if :: x > 0 -> x-- :: else fi

/* environment: time passes */
inline tick() {
	in_set = 0;
	for (EACH(i)) {
		DOWN(holder[i]);
		if :: holder[i] > 0 -> in_set++ :: else fi;
		DOWN(since[i]);
		DOWN(asked[i]);
		DOWN(left[i]);
#ifndef NO_REFRESH
		DOWN(alive[i]);
#endif
		if :: is[i] == DEAD && dead_for[i] <= STAY -> dead_for[i]++ :: else fi;
#ifdef PROMPT
		if
		:: is[i] == FIRST || (is[i] == LINE && !gone[i]) ->
			waited[i]++;
			assert(waited[i] <= WAIT)       /* whoever waits gets it, or gives up */
		:: else
		fi;
#ifndef NO_REFRESH
		if :: wake[i] -> wake[i] = 0; due[i] = 1 :: else fi
#endif
#endif
	};
	if :: in_set == 0 -> thin = 0 :: else fi
}

#ifdef PROMPT
/* What does not wait: time goes on when it is done, or is delayed. */
#define URGENT(c)  (net[c] != IDLE || message[c] != NONE \
	|| (is[c] == LINE && due[c]) || (is[c] == HOLD && left[c] <= 1) || is[c] == OWES)
#define MAY_RENEW(c)  !renewed[c]
#define MAY_RING(c)   due[c]
#if CLIENTS == 2
#define ON_TIME  !(URGENT(0) || URGENT(1))
#else
#define ON_TIME  !(URGENT(0) || URGENT(1) || URGENT(2))
#endif
#else
#define ON_TIME       true
#define MAY_RENEW(c)  left[c] < TTL
#define MAY_RING(c)   true
#endif

#if CLIENTS == 2
#define QUEUED(c)  ((queued > 0 && queue[0] == c) || (queued > 1 && queue[1] == c))
#else
#define QUEUED(c)  ((queued > 0 && queue[0] == c) || (queued > 1 && queue[1] == c) || (queued > 2 && queue[2] == c))
#endif

/* Ten minutes after the last sign of life a fat lock expires. */
#if CLIENTS == 2
#define QUIET(c)    (holder[c] == 0 && alive[c] == 0 && is[c] != FIRST && is[c] != LINE)
#define FORGOTTEN   (fat && QUIET(0) && QUIET(1))
#else
#define QUIET(c)    (holder[c] == 0 && alive[c] == 0 && is[c] != FIRST && is[c] != LINE)
#define FORGOTTEN   (fat && QUIET(0) && QUIET(1) && QUIET(2))
#endif

proctype client(byte c) {
endless:
	do
	:: d_step { is[c] == NEW && (c == 0 || is[(c == 0 -> 0 : c - 1)] != NEW) -> wait(c, ASK); skip }
	:: d_step { is[c] == NEW && (c == 0 || is[(c == 0 -> 0 : c - 1)] != NEW) -> wait(c, SET); skip }
	:: d_step { net[c] == NIL -> ask_after_set(c); skip }
	:: d_step { is[c] == LINE && net[c] == IDLE && MAY_RING(c) -> ring(c); skip }
	:: d_step { is[c] == LINE && !gone[c] -> leave(c); skip }
	:: d_step { is[c] == HOLD && net[c] == IDLE && left[c] > 0 && MAY_RENEW(c) ->
#ifdef PROMPT
		renewed[c] = 1;
#endif
		renewal(c) }
	:: d_step { is[c] == HOLD -> end(c); skip }
	:: d_step { is[c] == OWES -> release_again(c); skip }
#ifndef PROMPT
	:: d_step { is[c] == OWES && holder[c] == 0 -> is[c] = DONE } /* its lease has ended */
#endif
	/* another call, with a token of its own */
	:: d_step { is[c] == DONE && !LATE(c) && holder[c] == 0 && !QUEUED(c) -> is[c] = NEW }
	:: d_step { is[c] != NEW && is[c] < DONE && CAN(crashes) -> SPEND(crashes); crash(c); skip }

	/* an answer, or a message, has come */
	:: d_step { net[c] == YOURS || net[c] == BUSY -> settle(c); skip }
	:: d_step { net[c] == RENEWED -> extended(c); skip }
	:: d_step { net[c] == LOST -> lose(c); skip }
	:: d_step { net[c] == RELEASED -> confirmed(c); skip }
	:: d_step { message[c] != NONE -> hear(c); skip }
	od
}

/* The way between a client and Redis, and what Redis does. */
proctype connection(byte c) {
endless:
	do
	:: d_step { net[c] == ASK && LOOKED_AT -> ask(c); net[c] = mine;
		if
		:: mine == BUSY ->
			if :: hint[c] == FRESH -> hint[c] = CROSSED :: else fi;
			if :: message[c] == FRESH -> message[c] = CROSSED :: else fi
		:: else ->
			skip;
#ifdef FENCE
			reply_fence[c] = fence;
#ifdef MUTANT_FENCE_BY_CLOCK
			if :: by_clock -> reply_fence[c] = 1 :: else fi
#endif
#endif
		fi;
		skip }
	:: d_step { net[c] == SET && LOOKED_AT -> set(c); net[c] = mine } /* without a fence */
	:: d_step { net[c] == RENEW -> renew(c); net[c] = mine }
	:: d_step { net[c] == RELEASE && LOOKED_AT -> release(c); net[c] = RELEASED }

	/* Redis is out of the client's sight */
	:: d_step { net[c] != IDLE && CAN(losses) -> SPEND(losses); resend(c); skip }
	:: d_step { net[c] != IDLE && CAN(losses) -> SPEND(losses); fail(c); skip }
	:: d_step { message[c] != NONE && CAN(losses) -> SPEND(losses); message[c] = NONE }

	od
}

/* What comes late, or never. */
proctype lateness() {
endless:
	do
	:: d_step { late == ASK && LOOKED_AT -> late = IDLE; ask(late_of); late_of = 0 }
	:: d_step { late == SET && LOOKED_AT -> late = IDLE; set(late_of); late_of = 0 }
	:: d_step { late == RENEW -> late = IDLE; renew(late_of); late_of = 0 }
	:: d_step { late == RELEASE && LOOKED_AT -> late = IDLE; release(late_of); late_of = 0 }
	:: d_step { late != IDLE -> late = IDLE; late_of = 0 }
	od
}

proctype clock() {
endless:
	do
	:: d_step { ON_TIME -> tick(); skip }
	:: d_step { FORGOTTEN -> fat = 0; queued = 0; for (i : 0 .. CLIENTS - 1) { queue[i] = 0 }; skip }
#ifdef PROMPT
	:: d_step { !(ON_TIME) && delays > 0 -> delays--; tick(); skip }
#endif
	od
}

init {
	byte c;
	atomic {
		for (EACH(c)) { run client(c); run connection(c) };
		run lateness();
		run clock();
		c = 0
	}
}
