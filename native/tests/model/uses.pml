/* Who may use a group's memory, and until when: leases, calls, of which there is one at a time, a lock that a thread
   keeps between its calls, and the close. README.md says what stands for what.

   USERS threads each use the memory ROUNDS times. One of them may close the group, also in the middle of a use of its
   own, as a signal handler does; it then waits until the uses of the others have ended. CALLS: all uses are calls. */

#ifndef USERS
#define USERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define CLOSED 1
#define LOCKED 2
#define AWAITED 4
#define CALL 8
#define LEASE 16
#define USES(bits) ((bits) & 248)   /* a call and leases */

byte word, unlocked;    /* unlocked: the futex of those that wait for the lock */

#ifdef BREAK_COUNT
#define FUTEX word
#else
#define FUTEX unlocked
#endif

/* ---- what only the model knows ---- */
bool closing, released;
byte own[USERS];        /* what each thread uses */
bool asleep[USERS];

inline wake_all() {
    d_step {
#ifndef BREAK_COUNT
        unlocked++;
#endif
        for (i : 0 .. USERS - 1) { asleep[i] = false }
        i = 0
    }
}

/* ok: what the bits stand for has begun, as none of these others is set. */
inline begin(bits, others) {
#ifdef BREAK_BEGIN
    ok = !(word & (others));
    d_step {
#else
    d_step {    /* the compare-and-swap that succeeds, or the load that refuses */
        ok = !(word & (others));
#endif
        if
        :: ok -> word = word + (bits); own[me] = own[me] + USES(bits)
        :: else
        fi
    }
}

inline end(bits) {
    d_step {
        assert(!released || !USES(bits));     /* nor was it released before */
        own[me] = own[me] - USES(bits);
        before = word;
        word = word - (bits)
    };
    if
    :: (bits) & before & LOCKED && before & AWAITED ->
#ifdef BREAK_CLEAR
        wake_all();
        word = word & ~AWAITED
#else
        word = word & ~AWAITED;
        wake_all()
#endif
    :: else
    fi;
    if
#ifdef BREAK_UNLOCK
    :: before & CLOSED && USES(before) == USES(bits) ->
#else
    :: before & CLOSED && USES(bits) && USES(before) == USES(bits) ->
#endif
        assert(!released);
        released = true
    :: else
    fi;
    before = 0
}

/* Once, at any moment of a thread. */
inline maybe_close() {
    if
    :: skip
    :: atomic { !closing -> closing = true };
        begin(LEASE, (own[me] -> 0 : CLOSED));
        assert(ok);
        d_step { before = word; word = word | CLOSED };
#ifndef BREAK_WAKING
        if
        :: before & AWAITED -> wake_all()
        :: else
        fi;
#endif
        before = 0;
        USES(word) == own[me];      /* the others have ended */
        end(LEASE)
    fi
}

/* ok: a call of this thread has begun. If not, another thread has the lock and will wake this one, or the group is
   closed. */
inline begin_or_await() {
    do
    :: begin(LOCKED | CALL, LOCKED | CLOSED);
        if :: ok -> break :: else fi;
        d_step {
            before = word;
            if
#ifndef BREAK_AWAITING
            :: before & LOCKED -> word = word | AWAITED
#endif
            :: else
            fi
        };
#ifdef BREAK_RETRY
        break
#else
        if :: before & (LOCKED | CLOSED) -> break :: else fi
#endif
    od;
    before = 0
}

/* ok: a call of this thread has begun; if not, the group is closed. */
inline begin_call() {
    begin(LOCKED | CALL, LOCKED | CLOSED);
    if
    :: ok
    :: else ->
        begin(LEASE, CLOSED);
        if
        :: ok ->
            do
            :: seen = FUTEX;
                begin_or_await();
                if :: ok || word & CLOSED -> break :: else fi;
                begin_or_await();   /* as in any sleep, once what else ends it has been looked at */
                if :: ok -> break :: else fi;
                atomic { if :: FUTEX == seen -> asleep[me] = true :: else fi };
                !asleep[me]
            od;
            seen = 0;
            waited = ok;
            end(LEASE);
            ok = waited;
            waited = false
        :: else
        fi
    fi
}

proctype User(byte me) {
    byte i, round, before, seen;
    bool ok, waited;
    do
    :: round == ROUNDS -> break
    :: round < ROUNDS ->
        if
        :: maybe_close()
        :: begin_call();
            if
            :: ok ->
                maybe_close();
                end(CALL | LOCKED)
            :: else
            fi
#ifndef CALLS
        :: begin(LEASE, CLOSED);
            if
            :: ok ->
                maybe_close();
                begin(LEASE, 0);    /* within the first */
                end(LEASE);
                end(LEASE)
            :: else
            fi
        :: begin_call();    /* the thread keeps the lock for another call */
            if
            :: ok ->
                end(CALL);
                maybe_close();
                begin(CALL, CLOSED);
                if
                :: ok -> end(CALL)
                :: else
                fi;
                end(LOCKED)
            :: else
            fi
#endif
        fi;
        ok = false;
        round++
    od
}

init {
    atomic {
        byte i;
        for (i : 0 .. USERS - 1) { run User(i) }
    };
    _nr_pr == 1;
    assert(!closing || (released && !USES(word)))
}
