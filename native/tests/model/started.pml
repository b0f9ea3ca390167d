/* How operations that a rank has started and left to whoever waits for them come to run: by a thread of the rank that
   waits for one, or by the stream's thread, once a peer is about to sleep for one. README.md says what stands for what.

   OWNERS threads of the rank start OPS operations each, and wait for each or never; a peer waits for the first PEER. */

#ifndef OWNERS
#define OWNERS 1
#endif
#ifndef OPS
#define OPS 2
#endif

#ifndef PEER
#define PEER (OWNERS * OPS)
#endif

#define NONE 0
#define LEFT 1
#define AWAITED 2

byte submitted, finished;       /* operations */
byte idle = NONE;
bool wanted;                    /* the stream's thread has been started */
bool busy;                      /* a thread runs the stream */
byte asleep;                    /* the rank's threads that sleep for an operation */
bool waits, notified, called;   /* the peer waits; it is woken; the progress thread is */

inline hurry() {
    atomic {
        if
        :: submitted > finished -> wanted = true
        :: else
        fi
    }
}

inline look() {
    if
    :: waits -> hurry()
    :: else
    fi
}

inline leave() {
#ifdef BREAK_LOOK
    look();
    idle = LEFT
#else
    idle = LEFT;
    look()
#endif
}

/* Whoever is busy runs the first operation of the queue. */
inline run_first() {
#ifdef BREAK_CLEAR
    if
    :: submitted - finished > 1 -> skip
    :: else -> idle = NONE
    fi;
#else
    idle = NONE;
    if
    :: submitted - finished > 1 -> leave()
    :: else
    fi;
#endif
    atomic {
        finished++;
        assert(finished <= submitted)
    }
    if
    :: waits -> notified = true
    :: else
    fi
}

proctype Owner() {
    byte started, mine;
    do
    :: started == OPS -> break
    :: else ->
        atomic {
            submitted++;
            mine = submitted
        }
        leave();
        started++;
        if
        :: skip     /* it computes, or drops the operation */
        :: atomic { !busy -> busy = true };
            do
            :: finished >= mine -> break
            :: else -> run_first()
            od;
            atomic {
                busy = false;
#ifndef BREAK_HANDOVER
                if
                :: asleep && submitted > finished -> wanted = true
                :: else
                fi
#endif
            }
        :: atomic {
                asleep++;
                if
                :: !busy && submitted > finished -> wanted = true
                :: else
                fi
            }
            atomic { finished >= mine -> asleep-- }
        fi
    od
}

active proctype Thread() {
end:
    do
    :: atomic { wanted && !busy -> wanted = false; busy = true }
        do
        :: submitted > finished -> run_first()
        :: atomic { submitted == finished -> busy = false; break }
        od
    od
}

active proctype Progress() {
end:
    do
    :: called ->
        called = false;
        if
        :: atomic { idle == AWAITED -> idle = NONE }
            hurry()
        :: else
        fi
    od
}

active proctype Peer() {
    byte k = 1;
    do
    :: k > PEER -> break
    :: else ->
        waits = true;
        do
        :: notified = false;
            if
            :: finished >= k -> break
            :: else
            fi;
#ifndef BREAK_CALL
            if
            :: atomic { idle == LEFT -> idle = AWAITED }
                called = true
            :: else
            fi;
#endif
            notified
        od;
        waits = false;
        k++
    od
}

init {
    atomic {
        byte i = 0;
        do
        :: i == OWNERS -> break
        :: else ->
            run Owner();
            i++
        od
    }
}
