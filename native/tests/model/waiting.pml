/* The waiting protocol of the core as a model for spin: how ranks announce steps and messages, sleep
 * until others arrive, wake each other, and notice that a rank has died. README.md says which code
 * each part models, what is checked, and what is left out.
 *
 * spin -D sets:
 *   N           ranks, 2 or 3; each a process with a main thread (Rank) and a watcher thread (Watcher)
 *   PAIR        the group is of ranks 0 and 2 only; rank 1 watches from outside
 *   STEPS       how many steps every rank posts; it awaits each of every other rank
 *   NEIGHBOUR   or of the next rank only
 *   EARLY       rank 0 posts one step less, and leaves while the others wait for it
 *   MESSAGES    instead of steps: how many messages rank 0 sends to rank 1, through a ring that holds one
 *   DEATHS      how many ranks may be killed, each at any moment
 *   DEADLINES   any wait may also end because its deadline passes
 *   BREAK_...   leaves out one part of the protocol; spin must find the error
 */
#ifndef N
#define N 2
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define NEXT(k) ((me + k) % N)
#ifdef PAIR
#define MEMBER(r) ((r) < N && (r) != 1)
#else
#define MEMBER(r) ((r) < N)
#endif
#ifdef NEIGHBOUR
#define AWAITED(r) (MEMBER(r) && (r) == NEXT(1))
#else
#define AWAITED(r) (MEMBER(r) && (r) != me)
#endif
#ifdef EARLY
#define LAST (STEPS - (me == 0))
#else
#define LAST STEPS
#endif
#define NOBODY 255
#define DEADLINE 254    /* a failure_record: somebody waited too long */

/* ---- the segment: the group segment, and the ranks' records ---- */
byte posted[N];                /* steps that the rank has posted */
byte waits_for[N] = NOBODY;
byte sleepers;
bool notified[N];              /* the peer slot's notifications has changed since its rank last read it */
byte written, received;        /* of the ring from rank 0 to rank 1 */
byte message_sleepers[N];
bool message_notified[N];      /* the same for the peer slot's message_notifications */
bool left[N];
byte failure_record = NOBODY;  /* why the group failed: the rank that was lost, or DEADLINE */
#ifdef BREAK_FAILURE_RECORD
bool unfinished;               /* the failure_record is being written */
#endif
bool groups_failed[N];         /* the rank has ended, and its groups have been failed */

/* ---- the kernel ---- */
bool alive[N] = true;
bool asleep[N];                /* the rank's main thread sleeps on notifications or message_notifications */
byte dying;                    /* threads of a killed process that do not run any more but have not been removed yet */

#define MAY_DIE(r) (alive[r] && alive[0] + alive[1] + (N > 2 && alive[N - 1]) > N - DEATHS)
#define DIE(r) alive[r] = false; dying = 2

/* ---- the protocol. A process may be killed between any two statements; a d_step is one statement ---- */

/* No time limit ends the sleep, so a protocol that relies on the time limits of sleeps is an error here. */
inline futex_sleep(notification) {
    asleep[me] = !notification;
    !asleep[me]
}

/* Notifies a rank and wakes it, in one step: README.md says why this loses no error. */
#define NOTIFY(p) if :: MEMBER(p) -> notified[p] = true; message_notified[p] = true; asleep[p] = false :: else fi

/* Every rank, one after the other; the process may die in between. */
inline wake_all() {
    if
    :: d_step { NOTIFY(0); NOTIFY(1); NOTIFY(2) }
    :: d_step { MAY_DIE(me) -> NOTIFY(0); DIE(me) }
    :: d_step { MAY_DIE(me) -> NOTIFY(0); NOTIFY(1); DIE(me) }
    fi
}

/* If any rank sleeps or is about to. */
inline wake_all_asleep() {
    if
    :: sleepers || message_sleepers[0] || message_sleepers[1] || message_sleepers[N - 1] -> wake_all()
    :: else
    fi
}

inline fail_group(why) {
#ifdef BREAK_FAILURE_RECORD
    if
    :: d_step { failure_record == NOBODY -> failure_record = why; unfinished = true }; unfinished = false; wake_all()
    :: failure_record != NOBODY
    fi
#else
    failure_record = (failure_record == NOBODY -> why : failure_record);
    wake_all()
#endif
}

inline wake_sleeper(p) {
    d_step { if :: MEMBER(p) && waits_for[p] == me -> notified[p] = true; asleep[p] = false :: else fi }
}

inline post() {
    posted[me]++;
    if
    :: sleepers > 0 -> wake_sleeper(0); wake_sleeper(1); wake_sleeper(2)
    :: sleepers == 0
    fi
}

inline check_for_failure(peer, there) {
    if :: failure_record != NOBODY -> goto raise :: failure_record == NOBODY fi;
    if :: left[peer] && !(there) -> fail_group(peer); goto raise :: !left[peer] || (there) fi;
#ifdef DEADLINES
    if :: fail_group(DEADLINE); goto raise :: true fi
#endif
}

/* Sleep until `there`, a condition that `peer` will make true; `notification` is the flag that it then sets. */
inline sleep_for(peer, there, notification) {
    do
    ::
#ifndef BREAK_NOTIFICATION
        notification = false;    /* the notification is read */
#endif
#ifndef BREAK_RECHECK
        if :: there -> break :: !(there) fi;
#endif
        check_for_failure(peer, there);
#ifdef BREAK_NOTIFICATION
        notification = false;
#endif
        futex_sleep(notification);
        if :: there -> break :: !(there) fi
    od
}

inline await(peer, value) {
    if
    :: posted[peer] >= value
    :: posted[peer] < value ->
        waits_for[me] = peer;
        d_step { sleepers++; registered = true };
        sleep_for(peer, posted[peer] >= value, notified[me]);
        withdraw()
    fi
}

inline withdraw() {
    d_step { if :: registered -> registered = false; sleepers--; waits_for[me] = NOBODY :: else fi }
}

inline await_message(peer, there) {
    if
    :: there
    :: !(there) -> message_sleepers[me]++; sleep_for(peer, there, message_notified[me]); message_sleepers[me]--
    fi
}

inline notify_message(p) {
    if
    :: d_step { message_sleepers[p] > 0 -> message_notified[p] = true; asleep[p] = false }
    :: message_sleepers[p] == 0
    fi
}

inline group_lost_rank(p) {
    if
    :: MEMBER(p) && !left[p] ->
#ifdef BREAK_WAKING
        failure_record = (failure_record == NOBODY -> p : failure_record)
#else
        fail_group(p)
#endif
    :: MEMBER(p) && left[p] ->    /* it may have died while leaving, before it woke the sleepers */
#ifdef BREAK_LEAVING
        skip
#else
        wake_all_asleep()
#endif
    :: !MEMBER(p)
    fi
}

inline mark_ended(p) {
    if
#ifdef BREAK_MARKING
    :: d_step { !groups_failed[p] -> groups_failed[p] = true }; group_lost_rank(p)    /* only the first rank to notice fails the groups */
#else
    :: !groups_failed[p] -> group_lost_rank(p); groups_failed[p] = true
#endif
    :: groups_failed[p]
    fi
}

/* ---- the processes ---- */

proctype Rank(byte me) provided (dying == 0 || !alive[me]) {
    byte step, peer;
    bool registered;
    {
#ifdef MESSAGES
        do
        :: step < MESSAGES && me == 0 -> await_message(1, written == received); written++; notify_message(1); step++
        :: step < MESSAGES && me == 1 -> await_message(0, written > received); received++; notify_message(0); step++
        :: step == MESSAGES || me > 1 -> break
        od;
#else
        do
        :: step < LAST && MEMBER(me) && failure_record != NOBODY -> goto raise
        :: step < LAST && MEMBER(me) && failure_record == NOBODY ->
            post();
            d_step { step++; peer = 0 };
            do
            :: d_step { peer < N && !AWAITED(peer) -> peer++ }
            :: peer < N && AWAITED(peer) -> await(peer, step); peer++
            :: peer == N -> break
            od
        :: step == LAST || !MEMBER(me) -> break
        od;
#endif
        goto close;
raise:
#ifdef BREAK_FAILURE_RECORD
        !unfinished;
#endif
        assert(failure_record == DEADLINE || left[failure_record] || !alive[failure_record]);
        withdraw();
close:
        left[me] = true;
        wake_all_asleep();
        d_step { step = 0; peer = 0 };
end:    false    /* the process lives on, and may still be killed */
    } unless { d_step { !alive[me] -> dying--; step = 0; peer = 0; registered = false } }
}

proctype Watcher(byte me) provided (dying == 0 || !alive[me]) {
    bool seen[N];
    {
end:    do
        :: d_step { !alive[NEXT(1)] && !seen[NEXT(1)] -> seen[NEXT(1)] = true }; mark_ended(NEXT(1))
        :: d_step { N > 2 && !alive[NEXT(2)] && !seen[NEXT(2)] -> seen[NEXT(2)] = true }; mark_ended(NEXT(2))
        od
    } unless { d_step { !alive[me] -> dying--; seen[0] = false; seen[1] = false; seen[N - 1] = false } }
}

proctype Killer() provided (dying == 0) {
end:do
    :: d_step { MAY_DIE(0) -> DIE(0) }
    :: d_step { MAY_DIE(1) -> DIE(1) }
    :: d_step { N > 2 && MAY_DIE(N - 1) -> DIE(N - 1) }
    od
}

init {
    byte rank;
    atomic {
        do
        :: rank < N -> run Rank(rank); run Watcher(rank); rank++
        :: else -> break
        od;
        run Killer();
        rank = 0
    }
}
