/* How a rank takes messages that another one offers: it claims each, unless its sender has cancelled it, and copies it
   piece by piece, from the end; the sender may help, from the beginning. README.md says what stands for what.

   The sender offers MESSAGES, of PIECES each; it may cancel any of them, and help while it waits. FAILS: the group may
   fail at any moment. */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef PIECES
#define PIECES 2
#endif

#define FREE 0
#define OFFERED 1
#define COPYING 2
#define COPIED 3
#define CANCELLED 4
#define OPEN(state) ((state) % 2 == 1)

#ifdef BREAK_FAILED
#define NO_HELP false
#else
#define NO_HELP failed
#endif

/* ---- shared memory ---- */
byte stage[MESSAGES];
byte state, job, begun, finished;   /* the channel's CopyJob; job: the offer's number */
bool writing, failed;

/* ---- what only the model knows ---- */
bool sends[MESSAGES], receives[MESSAGES];   /* the engine may use the sender's, the receiver's memory */
byte copied[MESSAGES];                      /* a bit for each piece */

inline copy_piece(k, at) {
    d_step {
        assert(sends[k] && receives[k]);
        assert(!(copied[k] & (1 << (at))));
        copied[k] = copied[k] | (1 << (at))
    }
}

/* Whether one more piece has been begun. */
inline begin(ok, over) {
    ok = begun < PIECES;
    if
    :: ok && over -> ok = false
    :: ok && !over ->
        atomic {
            ok = begun < PIECES;
            begun++
        }
    :: else
    fi
}

inline help() {
    seen = state;
    if
    :: OPEN(seen) ->
        writing = true;
        if
#ifdef BREAK_RECHECK
        :: true ->
#else
        :: state == seen ->
#endif
            k = job;
            if
            :: sends[k] ->
                mine = 0;
                begin(ok, NO_HELP);
                do
                :: ok -> copy_piece(k, mine); mine++; finished++; begin(ok, NO_HELP)
                :: else -> break
                od;
                if                      /* all is copied: its send is complete */
#ifdef BREAK_COMPLETE
                :: begun >= PIECES -> sends[k] = false
#else
                :: finished >= PIECES -> sends[k] = false
#endif
                :: else
                fi
            :: else
            fi
        :: else
        fi;
        writing = false
    :: else
    fi
}

active proctype Sender() {
    byte message, seen, k, mine;
    bool ok;
    do
    :: message == MESSAGES -> break
    :: else ->
        sends[message] = true;
        stage[message] = OFFERED;
        message++
    od;
    message = 0;
    do
    :: message == MESSAGES -> break
    :: else ->
        do
        :: stage[message] == COPIED || !sends[message] -> break
        :: stage[message] != COPIED && OPEN(state) -> help()
        :: stage[message] != COPIED ->     /* it gives the send up */
            if
            :: atomic { stage[message] == OFFERED -> stage[message] = CANCELLED }
            :: else ->
#ifdef BREAK_CANCEL
                skip
#else
                stage[message] != COPYING
#endif
            fi;
            break
        od;
        sends[message] = false;
        message++
    od
}

active proctype Receiver() {
    byte message, mine;
    bool ok, shared;
    do
    :: message == MESSAGES -> break
    :: else ->
        stage[message] != FREE;
        receives[message] = true;
#ifdef BREAK_CLAIM
        ok = stage[message] == OFFERED;
        if
        :: ok -> stage[message] = COPYING
        :: else
        fi;
#else
        atomic {
            ok = stage[message] == OFFERED;
            if
            :: ok -> stage[message] = COPYING
            :: else
            fi
        }
#endif
        if
        :: ok ->
            mine = 0;
            shared = false;
            if
            :: skip     /* they exchange messages, or others cannot access the memory */
#ifdef BREAK_WRITING
            :: true ->
#else
            :: !writing ->
#endif
                job = message;
                begun = 0;
                finished = 0;
                state++;
                shared = true
            fi;
            if
            :: shared ->
                begin(ok, failed);
                do
                :: ok -> copy_piece(message, PIECES - 1 - mine); mine++; finished++; begin(ok, failed)
                :: else -> break
                od;
                if
#ifdef BREAK_FAILED_WRITING
                :: failed
#else
                :: failed -> !writing   /* nor will it be any more */
#endif
#ifdef BREAK_DONE
                :: true
#else
                :: atomic { !failed && finished >= PIECES -> skip }
#endif
                fi;
                state++
            :: else ->
                do
                :: mine < PIECES && !failed -> copy_piece(message, mine); mine++
                :: else -> break
                od
            fi;
            assert(failed || copied[message] == (1 << PIECES) - 1);
            receives[message] = false;
            stage[message] = COPIED
        :: else -> receives[message] = false
        fi;
        message++
    od
}

#ifdef FAILS
active proctype Failure() {
    failed = true
}
#endif
