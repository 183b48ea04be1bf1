/*
 * order.pml: strict order per key through failures, on asynq's public API ("InOrder").
 *
 * ONE key; NT tasks; 2 producers (producer p enqueues tasks p, p+2, ...); NW workers; asynq's
 * forwarder and recoverer; an operator; a clock without numbers (whatever may be due, may
 * happen). One process: every Redis script, every asynq script and every look is one atomic
 * step, and between any two of them anything else may happen. Budgets bound the trouble.
 *
 * Two ways to search:
 *   default   safety: forwarder, recoverer, end of a dead lease, deadline of an intent at any moment.
 *   -DLIVE    bounded liveness: those events come only when nothing else can happen (a "tick":
 *             all backstops elapse at once). After K ticks everything must be through. A lost
 *             wake-up thus costs a tick, a ghost that blocks for ever costs all of them.
 *             -DNOBACK: parked tasks never come back by themselves (to see lost wake-ups).
 *
 * What is in asynq (rdb.go, inspect.go 0.26):
 *   enqueue  -> PENDING (0 = ErrTaskIDConflict if the ID exists in ANY state, also archived/completed)
 *   dequeue  PENDING -> ACTIVE; Done ACTIVE -> GONE (or COMP: Retention); Retry ACTIVE -> RETRY; Archive ACTIVE -> ARCH
 *   RunTask  RETRY|SCHED|ARCH|COMP -> PENDING; refuses ACTIVE, PENDING, not found
 *   operator delete / archive: refuse ACTIVE.  recoverer: ACTIVE of a dead worker -> RETRY (+1) or ARCH
 *   PRETRY is RETRY whose LastErr says that WE parked it (no attempt spent).
 *
 * Variants:  -DV1  order set is a key of its own: check head | take lock | ... are separate scripts
 *            (default V2: members of the lock's own sorted set, one script decides head + lock)
 *            -DFAR  non-heads are enqueued with ProcessIn (SCHED) and a confirm script follows
 *            (default: enqueued as ever, parked on arrival; no confirm)
 *            -DCONT OnArchive: Continue (default HoldKey)
 * Environment: CRASHES FAILS OPS LOSS FINLOST TIMEOUTS (budgets), RETAIN, REUSE, PLAIN (task no.),
 *            TRIM (asynq trims the archive: of held tasks), TRIM_EARLY (also before anybody looked),
 *            EXPIRE_EARLY (done marks expire at any time), SPLIT_WAKE (look and RunTask apart)
 * Mutants:   see MUT_... below.
 */
#ifndef NT
#define NT 3
#endif
#ifndef NW
#define NW 2
#endif
#ifndef MAXR
#define MAXR 1          /* the caller's MaxRetry: the handler runs at most MAXR+1 times without crashes */
#endif
#define MAXA (MAXR+1)   /* what asynq is told: one attempt is reserved */
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef FAILS
#define FAILS 1
#endif
#ifndef OPS
#define OPS 1
#endif
#ifdef ONLY_LATE         /* only producers die or give up */
#define WCR 0
#else
#define WCR (crashes > 0)
#endif
#ifndef LOSS
#define LOSS 0
#endif
#ifndef FINLOST
#define FINLOST 0
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifndef PLAIN
#define PLAIN 99
#endif
#ifndef K
#define K 8
#endif

/* asynq's states */
#define NONE 0
#define SCHED 1
#define PENDING 2
#define ACTIVE 3
#define RETRY 4
#define PRETRY 5
#define ARCH 6
#define COMP 7
#define GONE 8
/* our member of a stamp: (queue/ID, number). HEAD = lowest number present, whatever its state */
#define ABSENT 0
#define INTENT 1        /* stamped; nobody has seen it in asynq */
#define IN     2        /* seen: arrived, or found by a probe; NOT to be woken by us */
#define PARKED 3        /* arrived, was sent back by us: to be woken when it is the head */
#define HELD   4        /* archived under HoldKey: a fact of its own */
/* a worker */
#define IDLE 0
#define GOT 1           /* dequeued; before our ask */
#define CHKD 2          /* V1: is head; before taking the lock */
#define BUSYLK 3        /* V1: lock busy; before the script that flags it parked */
#define RUN 4           /* handler runs */
#define REL 5           /* V1: member removed; before the release */
#define NEXTH 6         /* V1: released; before asking who is the head */
#define FINOK 7         /* our finish is done; before asynq's Done */
#define FINFAIL 8
#define FINARCH 9
#define PARKING 10      /* our ask said park; before asynq's Retry */

/* Redis, ours */
byte m[NT]; byte num[NT]; bit over[NT]; bit d[NT]; bit left[NT]; bit away[NT]; /* d, left: the marks n: and k: */
byte next = 1; byte holder; bit hdead;          /* holder: 0, or worker + 1 */
/* asynq's Redis */
byte st[NT]; byte fails[NT]; bit orphan[NT]; bit comp[NT];
/* processes */
byte ppc[2]; byte cur[2]; bit notfirst[2];
byte wpc[NW]; byte wt[NW]; byte wout[NW]; bit wz[NW];   /* wz: asynq has noted the end already (ctx ended) */
byte wk[NT];                                    /* a wake is under way: 1 to look, 2 looked (SPLIT_WAKE) */
byte prh; byte prs;                             /* one probe under way: head + 1; what was seen + 1; 255 stale */
bit late[NT]; bit slow[NT]; bit pover; byte prm;
/* slow: by the producer's own clock the deadline is over since its stamp; pover: a script had said so before the look;
 * prm: the member's state when a script named it to be looked at;
 * late:                                 /* an enqueue whose caller has given up may still land */
/* budgets */
byte crashes = CRASHES; byte failb = FAILS; byte ops = OPS; byte loss = LOSS; byte finlost = FINLOST; byte touts = TIMEOUTS;
/* for the properties only */
bit ret[NT]; byte pred[NT]; bit ok[NT]; bit fin[NT]; bit ran[NT]; bit landed[NT]; bit opd[NT]; bit oprun[NT]; bit lost;
byte rounds;
#ifdef MUT_COUNTER
byte turn = 1;
#endif
#ifdef MUT_POINTER
byte pp[NT];
#endif
#ifdef MUT_WATERMARK
byte wm;
#endif
hidden byte h, i, j, p, w, t, n; hidden byte b, may;

#ifdef REUSE            /* task 2 is enqueued with the TaskID of task 0 */
#define ID(x) ((x) == 2 -> 0 : (x))
#else
#define ID(x) (x)
#endif

inline head() { /* h: the lowest number present; NT: none */
  h = NT;
  for (i : 0 .. NT-1) {
    if :: (m[i] != ABSENT && (h == NT || num[i] < num[h])) -> h = i :: else fi
  }; skip;
#ifdef MUT_COUNTER
  h = NT;
  for (i : 0 .. NT-1) { if :: (m[i] != ABSENT && num[i] == turn) -> h = i :: else fi }; skip;
#endif
}
inline wakehead(x) { /* reply of a script: the head, if it is to be woken. x: whose step this is */
  head();
  if
  :: (h < NT && h != x && holder == 0 && m[h] == PARKED) -> wk[h] = 1
  :: (h < NT && h != x && holder == 0 && away[h] && m[h] != HELD && m[h] != PARKED) -> wk[h] = 1
#ifdef MUT_WAKE_RETRY
  :: (h < NT && holder == 0 && m[h] == IN) -> wk[h] = 1
#endif
  :: else
  fi
}
inline drop(x) { m[x] = ABSENT; over[x] = 0; away[x] = 0 }

/* S1, S2, S5, at each start of a handler */
inline start(x, who) {
#ifdef LEASE_LOST       /* the lock's lease ends while its holder runs: S1' - two runs of ONE task at most */
  for (i : 0 .. NW-1) { assert(lost || i == who || wpc[i] != RUN || wt[i] == x) }; skip;
#else
  for (i : 0 .. NW-1) { assert(lost || i == who || wpc[i] != RUN) }; skip;              /* S1 */
#endif
  for (i : 0 .. NT-1) { assert(lost || !((pred[x] >> i) & 1) || ok[i]) }; skip;          /* S2, S4 */
  assert(lost || !fin[x] || oprun[x] || x == PLAIN);                                           /* S5: what is done is not run again by itself */
  ran[x] = 1; wpc[who] = RUN
}

/* ---- the ask script: arrival of task t at worker w ---- */
inline arrive() { /* common part: b = is done already; may = is the head */
  b = 0; may = 0;
  if :: (d[t] && !comp[t] && t != PLAIN) -> b = 1 :: else fi;   /* comp: CompletedAt is set: an operator runs it again */
#ifdef MUT_DONE_BY_ID
  for (i : 0 .. NT-1) { if :: (d[i] && ID(i) == ID(t)) -> b = 1 :: else fi }; skip;
#endif
#ifdef MUT_NO_DONE
  b = 0;
#endif
#ifdef MUT_WATERMARK
  b = (m[t] == ABSENT && num[t] != 0 && num[t] <= wm);
#endif
  if
  :: b
  :: else ->
    if
    :: (m[t] == ABSENT && t == PLAIN) -> num[t] = next; next++      /* no stamp: appended at arrival */
    :: else                                                         /* its own number, from the header */
    fi;
    m[t] = IN; over[t] = 0; away[t] = 0;
#ifndef MUT_PROBE_BLIND
    if :: (prh == t + 1 && prs != 0) -> prs = 255 :: else fi;        /* what a probe saw is old news */
#endif
    head();
#ifdef MUT_POINTER
    may = (pp[t] == NT || pp[t] == t || m[pp[t]] == ABSENT);
    if :: !may -> h = pp[t] :: else fi                                /* who stops it is looked at */
#else
    may = (h == t);
#endif
  fi
}
inline probe_if_stopped() {
  if :: (h < NT && h != t && prh == 0) -> prh = h + 1; prs = 0; prm = m[h]; pover = over[h] :: else fi
}
inline ask() {
  arrive();
#ifdef V1
  if
  :: b -> wpc[w] = FINOK
  :: (!b && may) -> wpc[w] = CHKD
  :: (!b && !may) -> m[t] = PARKED; wpc[w] = PARKING; probe_if_stopped()
  fi
#else
  if
  :: b -> wpc[w] = FINOK
  :: (!b && may && holder == 0) -> holder = w + 1; hdead = 0; start(t, w)
  :: (!b && (!may || holder != 0)) -> m[t] = PARKED; wpc[w] = PARKING; probe_if_stopped()
  fi
#endif
}

/* ---- the finish script: the handler of t has returned (or its context has ended) ---- */
inline member_done() {
  drop(t); d[t] = 1; fin[t] = 1; ok[t] = 1;
#ifdef MUT_COUNTER
  turn++;
#endif
#ifdef MUT_WATERMARK
  if :: (num[t] > wm) -> wm = num[t] :: else fi
#endif
}
inline member_archived() {
#ifdef CONT
  drop(t); left[t] = 1; ok[t] = 1
#else
  m[t] = HELD
#endif
}
inline release() { if :: (holder == w + 1 && !hdead) -> holder = 0 :: else fi }

inline finish_end(out) { /* what follows the change of the member */
#ifdef V1
  wout[w] = out; wpc[w] = REL
#else
  release();
  if :: (m[t] == ABSENT || m[t] == HELD) -> wakehead(NT)
#ifdef MUT_FAIL_SILENT
     :: else
#else
     :: else -> wakehead(t)         /* also after a failure: a lower one may have come back meanwhile */
#endif
  fi;
  wpc[w] = out
#endif
}

/* ---- RunTask for a head that is parked ---- */
inline runtask(x) {
  assert(st[x] != RETRY);                                           /* S3 */
  if :: (st[x] == PRETRY || st[x] == SCHED || st[x] == ARCH || st[x] == COMP) -> st[x] = PENDING :: else fi
}

inline crash(who) {
  if :: (wpc[who] != IDLE && !wz[who] && st[wt[who]] == ACTIVE) -> orphan[wt[who]] = 1 :: else fi;
  if :: (holder == who + 1 && !hdead) -> hdead = 1 :: else fi;      /* its lease has to run out */
  wpc[who] = IDLE; wz[who] = 0; wt[who] = 0; wout[who] = 0
}
inline recover(x) {
  orphan[x] = 0;
  if :: (fails[x] < MAXA) -> fails[x]++; st[x] = RETRY :: else -> st[x] = ARCH fi
}

/* ---- producers: stamp | asynq's enqueue | (FAR: confirm) ---- */
inline conflict(x) { /* b: asynq has a task with this ID, in whatever state */
  b = 0;
  for (i : 0 .. NT-1) { if :: (i != x && ID(i) == ID(x) && st[i] != NONE && st[i] != GONE) -> b = 1 :: else fi }; skip
}
inline stamp() {
  t = cur[p]; ppc[p] = 1;
  if
  :: (t == PLAIN)                                                   /* a plain client does not stamp */
  :: else ->
    for (i : 0 .. NT-1) { if :: ret[i] -> pred[t] = pred[t] | (1 << i) :: else fi }; skip;
#ifdef MUT_POINTER
    pp[t] = NT;
    for (i : 0 .. NT-1) { if :: (m[i] != ABSENT && (pp[t] == NT || num[i] > num[pp[t]])) -> pp[t] = i :: else fi }; skip;
#endif
    num[t] = next; next++; m[t] = INTENT;
#ifdef FAR
    head(); notfirst[p] = (h != t); away[t] = (h != t)
#endif
  fi
}
inline enqueue() {
  t = cur[p]; conflict(t);
  if
  :: b ->                                                           /* known error: withdraw, by number */
    drop(t); slow[t] = 0;
#ifdef MUT_WITHDRAW_BY_ID
    for (i : 0 .. NT-1) { if :: (ID(i) == ID(t)) -> drop(i) :: else fi }; skip;
#endif
    wakehead(NT);
    ppc[p] = 0; cur[p] = cur[p] + 2
  :: else ->
    landed[t] = 1;
#ifdef FAR
    st[t] = (notfirst[p] -> SCHED : PENDING); notfirst[p] = 0; ppc[p] = 2
#else
    st[t] = PENDING;
#ifdef MUT_NO_LATE_CONFIRM
    slow[t] = 0;
#endif
    if
    :: slow[t] -> slow[t] = 0; ppc[p] = 2                            /* took too long: confirm before it returns */
    :: else -> ret[t] = (t != PLAIN); ppc[p] = 0; cur[p] = cur[p] + 2
    fi
#endif
  fi
}
inline confirm() {
  t = cur[p];
  if
  :: (m[t] == INTENT) -> m[t] = IN; over[t] = 0
#ifndef MUT_NO_LATE_CONFIRM
  :: (m[t] == ABSENT && !d[t] && !left[t]) -> m[t] = IN              /* dropped as a ghost meanwhile: back in at its own number */
#endif
  :: else
  fi;
#ifndef MUT_CONFIRM_BLIND
  head();
  if :: (h == t && holder == 0 && away[t]) -> wk[t] = 1 :: else fi;
#endif
  ret[t] = 1; slow[t] = 0; ppc[p] = 0; cur[p] = cur[p] + 2
}
inline abandon(l) {
  late[cur[p]] = l; slow[cur[p]] = 0; ppc[p] = 0; notfirst[p] = 0; cur[p] = cur[p] + 2
}
inline land(x) {
  late[x] = 0; conflict(x);
  if :: b :: else -> st[x] = PENDING; landed[x] = 1 fi
}
inline note(x) {
#ifdef RETAIN
  if :: (st[x] == ACTIVE) -> st[x] = COMP; comp[x] = 1 :: else fi
#else
  if :: (st[x] == ACTIVE) -> st[x] = GONE :: else fi
#endif
}
/* the context ended before the handler returned: asynq has stored a retry (or archived). Whatever
 * the handler returned, the member stays; only the lock is released. */
inline zombie_end() {
  release(); wpc[w] = IDLE; wz[w] = 0; wt[w] = 0; wakehead(t)
}
/* GetTaskInfo of the head that stops somebody. It compares the number in the header, so that
 * another task with the same ID does not count. */
inline look() {
  prs = 1 + st[t];
#ifdef MUT_PROBE_BY_ID
  conflict(t);
  if :: ((st[t] == NONE || st[t] == GONE) && b) -> prs = 1 + PENDING :: else fi
#endif
}
/* the script that acts on what was seen. It does nothing if the task has arrived since (prs == 255). */
inline act() {
  head();
  if
#ifdef MUT_PROBE_BLIND
  :: (m[t] == ABSENT)
#else
  :: (m[t] == ABSENT || m[t] != prm) -> n = 99                       /* no longer what was looked at */
#endif
  :: else ->
  if
  :: (n == NONE || n == GONE) ->
    if
    :: (m[t] == INTENT && !pover)                                   /* not yet: the Enqueue may be slow */
    :: (m[t] == INTENT && pover) -> drop(t); wakehead(NT)         /* a ghost */
#ifdef MUT_HOLD_FROM_ROW
    :: (m[t] == HELD) -> drop(t); wakehead(NT)
#else
    :: (m[t] == HELD)                                               /* trimmed, or deleted: a hold stays */
#endif
    :: (m[t] == IN || m[t] == PARKED) -> drop(t); wakehead(NT)      /* deleted */
    fi
  :: (n == ARCH) ->
#ifdef CONT
    ok[t] = 1; drop(t); left[t] = 1; wakehead(NT)
#else
    m[t] = HELD; over[t] = 0
#endif
#ifdef MUT_EXISTS
  :: (n == COMP)
#else
  :: (n == COMP) -> drop(t); left[t] = 1; wakehead(NT)         /* finished, and we were not told */
#endif
  :: (n == PRETRY || n == SCHED) ->
    if :: (m[t] == INTENT) -> m[t] = IN; over[t] = 0 :: else fi;
    wakehead(NT)
  :: (n == PENDING || n == ACTIVE || n == RETRY) ->
    if :: (m[t] == INTENT) -> m[t] = IN; over[t] = 0 :: else fi     /* found: it comes by itself */
  fi
  fi
}
inline clockskip(x) {
#ifdef MUT_SKIPCLOCK
  drop(x); wakehead(NT)
#else
  skip
#endif
}

#define TASK(x) ((x) < NT)

init {
  d_step { cur[0] = 0; cur[1] = 1 }
  do
  /* ---------- producers ---------- */
  :: d_step { (ppc[0] == 0 && TASK(cur[0])) -> p = 0; stamp() }
  :: d_step { (ppc[1] == 0 && TASK(cur[1])) -> p = 1; stamp() }
  :: d_step { (ppc[0] == 1) -> p = 0; enqueue() }
  :: d_step { (ppc[1] == 1) -> p = 1; enqueue() }
  :: d_step { (ppc[0] == 2) -> p = 0; confirm() }                    /* -DFAR: always; else only a slow one */
  :: d_step { (ppc[1] == 2) -> p = 1; confirm() }
  /* died, or gave up, between the steps: what was sent may land later, or never */
  :: d_step { (crashes > 0 && ppc[0] != 0) -> p = 0; crashes--; abandon(0) }
  :: d_step { (crashes > 0 && ppc[0] == 1) -> p = 0; crashes--; abandon(1) }
  :: d_step { (crashes > 0 && ppc[1] != 0) -> p = 1; crashes--; abandon(0) }
  :: d_step { (crashes > 0 && ppc[1] == 1) -> p = 1; crashes--; abandon(1) }
#define LAND(x) \
  :: d_step { (TASK(x) && late[x]) -> land(x) }
  LAND(0) LAND(1) LAND(2)
#if NT > 3
  LAND(3)
#endif

  /* ---------- workers ---------- */
#define WORKER(k) \
  :: d_step { (wpc[k] == IDLE && st[0] == PENDING) -> wpc[k] = GOT; wt[k] = 0; st[0] = ACTIVE; orphan[0] = 0 } \
  :: d_step { (wpc[k] == IDLE && st[1] == PENDING) -> wpc[k] = GOT; wt[k] = 1; st[1] = ACTIVE; orphan[1] = 0 } \
  :: d_step { (wpc[k] == IDLE && st[2] == PENDING) -> wpc[k] = GOT; wt[k] = 2; st[2] = ACTIVE; orphan[2] = 0 } \
  :: d_step { (wpc[k] == GOT) -> w = k; t = wt[w]; ask() } \
  :: d_step { (wpc[k] == RUN && !wz[k]) -> w = k; t = wt[w]; member_done(); finish_end(FINOK) } \
  :: d_step { (wpc[k] == RUN && !wz[k] && failb > 0) -> w = k; t = wt[w]; failb--; \
       if :: (fails[t] >= MAXR) -> member_archived(); finish_end(FINARCH) :: else -> finish_end(FINFAIL) fi } \
  :: d_step { (wpc[k] == RUN && !wz[k] && finlost > 0) -> w = k; t = wt[w]; finlost--; ok[t] = 1; hdead = 1; wpc[w] = FINOK } \
  :: d_step { (wpc[k] == RUN && !wz[k] && touts > 0 && st[wt[k]] == ACTIVE) -> w = k; t = wt[w]; touts--; wz[w] = 1; /* ctx ended: asynq notes at once */ \
       if :: (fails[t] < MAXA) -> fails[t]++; st[t] = RETRY :: else -> st[t] = ARCH fi } \
  :: d_step { (wpc[k] == RUN && wz[k]) -> w = k; t = wt[w]; zombie_end() } \
  :: d_step { (wpc[k] == FINOK) -> t = wt[k]; note(t); wpc[k] = IDLE; wt[k] = 0 } \
  :: d_step { (wpc[k] == FINFAIL) -> t = wt[k]; if :: (st[t] == ACTIVE) -> st[t] = RETRY; fails[t]++ :: else fi; wpc[k] = IDLE; wt[k] = 0 } \
  :: d_step { (wpc[k] == FINARCH) -> t = wt[k]; if :: (st[t] == ACTIVE) -> st[t] = ARCH :: else fi; wpc[k] = IDLE; wt[k] = 0 } \
  :: d_step { (wpc[k] == PARKING) -> t = wt[k]; if :: (st[t] == ACTIVE) -> st[t] = PRETRY :: else fi; wpc[k] = IDLE; wt[k] = 0 } \
  :: d_step { (WCR && wpc[k] != IDLE) -> crashes--; crash(k) }
  WORKER(0)
#if NW > 1
  WORKER(1)
#endif
#if NT > 3
  :: d_step { (wpc[0] == IDLE && st[3] == PENDING) -> wpc[0] = GOT; wt[0] = 3; st[3] = ACTIVE; orphan[3] = 0 }
  :: d_step { (wpc[1] == IDLE && st[3] == PENDING) -> wpc[1] = GOT; wt[1] = 3; st[3] = ACTIVE; orphan[3] = 0 }
#endif
#ifdef V1
#define WORKER1(k) \
  :: d_step { (wpc[k] == CHKD) -> w = k; t = wt[w]; \
       if :: (holder == 0) -> holder = w + 1; hdead = 0; start(t, w) :: else -> wpc[w] = BUSYLK fi } \
  :: d_step { (wpc[k] == BUSYLK) -> w = k; t = wt[w]; if :: (m[t] == IN) -> m[t] = PARKED :: else fi; wpc[w] = PARKING } \
  :: d_step { (wpc[k] == REL) -> w = k; t = wt[w]; release(); wpc[w] = NEXTH } \
  :: d_step { (wpc[k] == NEXTH) -> w = k; t = wt[w]; wakehead((m[t] == ABSENT || m[t] == HELD -> NT : t)); wpc[w] = wout[w]; wout[w] = 0 }
  WORKER1(0)
  WORKER1(1)
#endif

  /* ---------- wakes: a few ms of patience until asynq has stored the Retry of what we parked ---------- */
#define NOTED(x) !(st[x] == ACTIVE && !orphan[x] && m[x] == PARKED)
#ifdef SPLIT_WAKE
#define WAKE(x) \
  :: d_step { (TASK(x) && wk[x] == 1 && NOTED(x)) -> if :: (st[x] == PRETRY || st[x] == SCHED) -> wk[x] = 2 :: else -> wk[x] = 0 fi } \
  :: d_step { (TASK(x) && wk[x] == 2) -> wk[x] = 0; runtask(x) } \
  :: d_step { (TASK(x) && wk[x] != 0 && WCR) -> crashes--; wk[x] = 0 }
#else
#ifdef MUT_WAKE_RETRY
#define WAKE(x) \
  :: d_step { (TASK(x) && wk[x] == 1) -> wk[x] = 0; runtask(x) }
#else
#define WAKE(x) \
  :: d_step { (TASK(x) && wk[x] == 1 && NOTED(x)) -> wk[x] = 0; if :: (st[x] == PRETRY || st[x] == SCHED) -> runtask(x) :: else fi } \
  :: d_step { (TASK(x) && wk[x] != 0 && WCR) -> crashes--; wk[x] = 0 }   /* RunTask failed, or its process died */
#endif
#endif
  WAKE(0) WAKE(1) WAKE(2)
#if NT > 3
  WAKE(3)
#endif
#ifdef CHECK_GHOST      /* the same look names an intent that is past its deadline */
#define GHOST(x) \
  :: d_step { (TASK(x) && prh == 0 && m[x] == INTENT && over[x] && ppc[0] != 1 && ppc[1] != 1) -> head(); prh = x + 1; prs = 0; prm = INTENT; pover = 1 }
  GHOST(0) GHOST(1) GHOST(2)
#endif
#ifdef CHECKS /* Park's periodic look of a process that has parked something on the key */
  :: d_step { (holder == 0) -> head(); if :: (h < NT && m[h] == PARKED && wk[h] == 0 && st[h] == PRETRY) -> wk[h] = 1 :: else fi }
#endif

  /* ---------- probe of a head that stops somebody: look | act, conditional on what has not changed ---------- */
  :: d_step { (prh != 0 && prs == 0) -> t = prh - 1; look() }
  :: d_step { (prh != 0 && prs == 255) -> prh = 0; prs = 0; pover = 0; prm = 0 }
  :: d_step { (prh != 0 && prs != 0 && prs != 255) -> t = prh - 1; n = prs - 1; prh = 0; prs = 0; act(); pover = 0; prm = 0 }
  :: d_step { (prh != 0 && WCR) -> crashes--; prh = 0; prs = 0; pover = 0; prm = 0 }

  /* ---------- the operator ---------- */
#define OPER(x) \
  :: d_step { (TASK(x) && ops > 0 && st[x] != NONE && st[x] != ACTIVE && st[x] != GONE) -> ops--; st[x] = GONE; ok[x] = 1; opd[x] = 1 } \
  :: d_step { (TASK(x) && ops > 0 && (st[x] == RETRY || st[x] == PRETRY || st[x] == ARCH || st[x] == COMP || st[x] == SCHED)) -> ops--; st[x] = PENDING; oprun[x] = 1 } \
  :: d_step { (TASK(x) && ops > 0 && (st[x] == PENDING || st[x] == RETRY || st[x] == PRETRY || st[x] == COMP || st[x] == SCHED)) -> ops--; st[x] = ARCH; opd[x] = 1 }
  OPER(0) OPER(1) OPER(2)
  :: d_step { (ops > 0) -> head(); if :: (h < NT && holder == 0) -> ops--; ok[h] = 1; drop(h); left[h] = 1; wakehead(NT) :: else fi } /* SkipHead */

  /* ---------- asynq by itself ---------- */
#ifdef TRIM
#define TRIMS(x) \
  :: d_step { (TASK(x) && st[x] == ARCH && TRIMMABLE(x)) -> st[x] = GONE }
#ifdef TRIM_EARLY
#define TRIMMABLE(x) 1
#else
#define TRIMMABLE(x) (m[x] == HELD || m[x] == ABSENT)
#endif
  TRIMS(0) TRIMS(1) TRIMS(2)
#endif
#ifndef LIVE
#define ENV(x) \
  :: d_step { (TASK(x) && (st[x] == RETRY || st[x] == PRETRY || st[x] == SCHED)) -> st[x] = PENDING } \
  :: d_step { (TASK(x) && orphan[x] && st[x] == ACTIVE) -> recover(x) }
  ENV(0) ENV(1) ENV(2)
#if NT > 3
  ENV(3)
#endif
  :: d_step { (holder != 0 && hdead) -> holder = 0; hdead = 0 }
#endif
  /* an intent's deadline passes; a done mark expires: by default only when asynq can redeliver no more */
#ifdef EXPIRE_EARLY
#define MAYEXPIRE(x) d[x]
#else
#define MAYEXPIRE(x) 0          /* kept for as long as asynq may redeliver: then it makes no difference when it goes */
#endif
#define CLOCK(x) \
  :: d_step { (TASK(x) && m[x] == INTENT && !over[x]) -> over[x] = 1; slow[x] = 1; clockskip(x) } \
  :: d_step { (TASK(x) && MAYEXPIRE(x)) -> d[x] = 0 }
  CLOCK(0) CLOCK(1) CLOCK(2)
#if NT > 3
  CLOCK(3)
#endif
#ifdef LEASE_LOST       /* and asynq's lease too: the recoverer takes the task for lost, its handler goes on */
  :: d_step { (holder != 0 && !hdead && touts == 0) -> holder = 0 }
#endif
  /* all of our keys vanish, once */
  :: d_step { (loss > 0) -> loss--; lost = 1; holder = 0; hdead = 0; for (i : 0 .. NT-1) { m[i] = ABSENT; d[i] = 0; left[i] = 0; over[i] = 0; away[i] = 0 }; skip }

#ifdef LIVE
  :: timeout -> d_step {
       b = 1; head();
       for (i : 0 .. NT-1) { if :: (st[i] == SCHED || st[i] == PENDING || st[i] == ACTIVE || st[i] == RETRY || st[i] == PRETRY) -> b = 0 :: else fi }; skip;
       if
       :: b -> for (i : 0 .. NT-1) { assert(!landed[i] || ran[i] || opd[i] || st[i] == ARCH || ok[i]) }; skip;   /* L1, L2 */
       :: (!b && h < NT && m[h] == HELD) -> b = 1                                  /* an operator has to act */
       :: else ->
         rounds++; assert(rounds <= K);                                           /* L1 */
         if :: hdead -> holder = 0; hdead = 0 :: else fi;
         for (i : 0 .. NT-1) {
           if
           :: (st[i] == ACTIVE && orphan[i]) -> recover(i)
           :: (st[i] == RETRY) -> st[i] = PENDING
#ifndef NOBACK
           :: (st[i] == PRETRY || st[i] == SCHED) -> st[i] = PENDING
#endif
           :: else
           fi
         }; skip
       fi }
     if :: b -> break :: else fi
#endif
  od
}
