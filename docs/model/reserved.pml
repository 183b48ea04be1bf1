/*
 * reserved.pml: the reserved attempt. One task, asked for with MaxRetry = M; asynq is told M + 1
 * (header: M). retried is asynq's counter. The guard ends the task itself (SkipRetry).
 *   park       returned busy: no attempt spent, but a task with retried == M + 1 (asynq's last) may not return
 *   TIMEOUT    the context ends: asynq stores a retry AT ONCE, counted, before the guard has a say
 *   crash      the recoverer counts one (ErrLeaseExpired), or archives if retried >= M + 1
 *   operator   RunTask of the archived task: asynq does not reset retried
 * RULE 0: run on every arrival;  after a failure with retried >= M: SkipRetry
 * RULE 1: refuse (SkipRetry) on arrival with retried > M, whatever happened
 * RULE 2: the member keeps begun = retried + 1 of the last grant; on arrival with retried > M refuse only
 *         if begun == retried (the attempt before this one did begin); a refusal sets begun = retried + 1
 * CONT (-DCONT, OnArchive: Continue): after the failed last run the member has left, and begun with it. UNNOTED: asynq cannot
 *         note that end, and its recoverer counts one. The mark s:<nonce>|<begun> refuses what comes then; -DMUT_NO_MARK: it is missing
 */
#ifndef UNNOTED
#define UNNOTED 0
#endif
#ifndef M
#define M 1
#endif
#ifndef RULE
#define RULE 2
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef EARLY
#define EARLY 0         /* crashes before the handler began */
#endif
#ifndef TOUTS
#define TOUTS 0
#endif
#ifndef OPRUN
#define OPRUN 0
#endif
#define PENDING 0
#define GOT 1
#define RUN 2
#define RETRY 3
#define ARCH 4
#define DONE 5
byte st = PENDING, retried, begun, starts, parks = 2, crashes = CRASHES, early = EARLY, touts = TOUTS, opr = OPRUN, crashed, unnoted = UNNOTED, mark;
bit eaten; /* an operator's run that did not run the handler */ bit oprunning;
inline leave() { /* the finish script, after the last failure */
#ifdef CONT
#ifndef MUT_NO_MARK
  mark = begun;
#endif
  begun = 0
#else
  skip
#endif
}
init {
  do
  :: d_step { st == PENDING -> st = GOT }
  :: d_step { st == GOT && parks > 0 && retried <= M -> parks--; st = RETRY }        /* busy: parked, not spent */
  :: d_step { st == GOT && early > 0 -> early--; if :: retried < M+1 -> retried++; st = RETRY :: else -> st = ARCH fi }
  :: d_step { st == GOT ->
       if
       :: RULE == 1 && retried > M -> st = ARCH; if :: oprunning -> eaten = 1 :: else fi
       :: RULE == 2 && retried > M && (begun == retried || mark == retried) ->
            begun = retried + 1; mark = 0; st = ARCH; if :: oprunning -> eaten = 1 :: else fi;
#ifdef CONT
            begun = 0
#endif
       :: else -> st = RUN; starts++; begun = retried + 1; oprunning = 0
       fi }
  :: d_step { st == RUN -> st = DONE }
  :: d_step { st == RUN -> if :: retried >= M -> leave(); st = ARCH :: else -> retried++; st = RETRY fi }       /* failed */
  :: d_step { st == RUN && retried >= M && unnoted > 0 -> unnoted--; leave(); if :: retried < M+1 -> retried++; st = RETRY :: else -> st = ARCH fi }
  :: d_step { st == RUN && touts > 0 -> touts--; if :: retried < M+1 -> retried++; st = RETRY :: else -> st = ARCH fi }
  :: d_step { st == RUN && crashes > 0 -> crashes--; crashed++; if :: retried < M+1 -> retried++; st = RETRY :: else -> st = ARCH fi }
  :: d_step { st == RETRY -> st = PENDING }
  :: d_step { st == ARCH ->
       assert(starts <= M + 1 + (OPRUN - opr));    /* R1: the handler starts at most M+1 times (and once for each operator's run) */
#ifndef NO_UNRUN
       assert(starts >= M + 1 || crashes < CRASHES || touts < TOUTS || starts + EARLY >= M + 1 ); /* R2 below is the strict one */
       assert(starts > 0);                         /* R2: never archived unrun */
#endif
       assert(!eaten);                             /* R3: an operator's run runs */
       if :: opr > 0 -> opr--; oprunning = 1; st = PENDING :: else -> st = 6 fi }
  :: st == DONE || st == 6 -> assert(starts <= M + 1 + (OPRUN - opr)); break
  od
}
