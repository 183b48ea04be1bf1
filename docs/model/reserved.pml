/*
 * The reserved attempt, as lua/order_ask.lua and client.go keep it. One task, enqueued with MaxRetry M; asynq is told
 * M + 1. retried is asynq's count.
 *   TOUTS     the context ends: asynq stores a retry, counted, before the guard has a say
 *   CRASHES   the recoverer counts one, or archives at M + 1; EARLY: before the handler began
 *   OPRUN     an operator runs the archived task: asynq does not reset retried
 *   CONTINUE  OnArchive: Continue: the record leaves with the last run, and begun with it. UNNOTED: asynq cannot note
 *             that end, and its recoverer counts one
 * The record keeps begun: retried + 1 of the last grant. An arrival with retried > M is refused if the attempt before
 * it did begin: begun == retried, or the mark ended:<nonce>|<retried> says so.
 *
 * Planted mistakes: MUT_RUN_ALWAYS: nothing is refused: one start too many. MUT_REFUSE_ALWAYS: whoever comes with
 * retried > M is refused: an operator's run too. MUT_NO_MARK: no mark: one start too many.
 */
#ifndef M
#define M 1
#endif
#ifndef UNNOTED
#define UNNOTED 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef EARLY
#define EARLY 0
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
#define OVER 5
byte st = PENDING, retried, begun, mark, starts, busy = 2, crashes = CRASHES, early = EARLY, touts = TOUTS, opr = OPRUN, unnoted = UNNOTED;
bit by_operator;
#define COUNT if :: retried <= M -> retried++; st = RETRY :: else -> st = ARCH fi
#if defined(MUT_RUN_ALWAYS)
#define SPENT 0
#elif defined(MUT_REFUSE_ALWAYS)
#define SPENT (retried > M)
#else
#define SPENT (retried > M && begun == retried || mark != 0 && mark == retried)
#endif
inline leave() { /* the release, after the last failure, or the refusal */
#ifdef CONTINUE
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
	:: d_step { st == GOT && busy > 0 && retried <= M -> busy--; st = RETRY }      /* it returns, and spends nothing */
	:: d_step { st == GOT && early > 0 -> early--; COUNT }
	:: d_step { st == GOT ->
		if
		:: SPENT ->
			assert(by_operator == 0);                         /* an operator's run runs */
			begun = retried + 1; mark = 0; leave(); st = ARCH
		:: else -> st = RUN; starts++; begun = retried + 1; mark = 0; by_operator = 0
		fi }
	:: d_step { st == RUN -> st = OVER }
	:: d_step { st == RUN -> if :: retried >= M -> leave(); st = ARCH :: else -> retried++; st = RETRY fi }
	:: d_step { st == RUN && retried >= M && unnoted > 0 -> unnoted--; leave(); COUNT }
	:: d_step { st == RUN && touts > 0 -> touts--; COUNT }
	:: d_step { st == RUN && crashes > 0 -> crashes--; COUNT }
	:: d_step { st == RETRY -> st = PENDING }
	:: d_step { st == ARCH ->
		assert(starts <= M + 1 + OPRUN - opr);                 /* the handler starts at most M + 1 times, and once for each run of an operator's */
		assert(starts + EARLY - early >= M + 1);               /* and no attempt is lost that had not begun */
		if :: opr > 0 -> opr--; by_operator = 1; st = PENDING :: else -> st = OVER fi }
	:: st == OVER -> assert(starts <= M + 1 + OPRUN - opr); break
	od
}
