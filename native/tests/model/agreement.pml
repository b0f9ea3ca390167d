/* The agreements of the survivors of a group (shrink, agree, restore) as a model for spin: how ranks arrive,
 * propose an outcome, adopt one of the proposals, and take it, while ranks die at any moment or come too late.
 * README.md says which code each part models.
 *
 * spin -D sets:
 *   N           ranks, 2 or 3
 *   AGREEMENTS  how many agreements the ranks make, one after the other
 *   DEATHS      how many ranks may be killed, each at any moment
 *   DEADLINES   a rank may at any time stop waiting for ranks that have not arrived
 *   COARSE      a rank polls all others in one step, which keeps three ranks within reach
 *   BREAK_...   leaves out one part of the protocol; spin must find the error
 */
#ifndef N
#define N 3
#endif
#ifndef AGREEMENTS
#define AGREEMENTS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifdef BREAK_BUFFERS
#define BUFFER(k) 0             /* the proposals of consecutive agreements share their memory */
#else
#define BUFFER(k) ((k) % 2)
#endif
#define AT(r, k) proposals[(r) * 2 + BUFFER(k)]
#define PROPOSED(r, k) proposed[(r) * 2 + BUFFER(k)]
#define DECISION(k) decisions[(k) % 2]
#define NUMBER(word) ((word) / 4)
#define RANK(word) ((word) % 4)

/* ---- shared memory ---- */
byte arrival[N];               /* the agreement in which the rank has arrived */
byte decisions[2];             /* number * 4 + the rank whose proposal was adopted */
byte proposals[N * 2];         /* the ranks that are present, as a set of bits */
byte proposed[N * 2];          /* the number of the agreement to which that proposal belongs */
bool notified[N];              /* notifications has changed since the rank last read it */

/* ---- the kernel, and what only the model knows ---- */
bool alive[N] = true;
bool asleep[N];
byte taken[AGREEMENTS + 1];    /* the outcome that the first rank took */
byte adopted[AGREEMENTS + 1];  /* the proposal that the decision names */

#define MAY_DIE(r) (alive[r] && alive[0] + alive[1] + (N > 2 && alive[N - 1]) > N - DEATHS)
#define WAKE(r) if :: (r) < N -> notified[r] = true; asleep[r] = false :: else fi
/* Of one rank after the other, or of some before the process dies; a rank that notices later could as well be slower. */
#define WAKE_ALL d_step { WAKE(0); WAKE(1); WAKE(2) }

proctype Rank(byte me) {
    byte number = 1, peer, present, word, mine;
    bool awaited, excluded[N];
    {
    do
    :: number > AGREEMENTS -> break
    :: number <= AGREEMENTS ->
        arrival[me] = number;
        WAKE_ALL;
        do
        ::
#ifndef BREAK_NOTIFICATION
            notified[me] = false;
#endif
            word = DECISION(number);
            if :: NUMBER(word) >= number -> break :: else fi;
#ifdef COARSE
            d_step {
                peer = 0; present = 0; awaited = false;
                do
                :: peer < N && !excluded[peer] && alive[peer] && arrival[peer] == number -> present = present | (1 << peer); peer++
                :: peer < N && !excluded[peer] && alive[peer] && arrival[peer] != number -> awaited = true; peer++
                :: peer < N && (excluded[peer] || !alive[peer]) -> peer++
                :: peer == N -> break
                od;
                peer = 0
            };
#else
            d_step { peer = 0; present = 0; awaited = false };
            do
            :: peer == N -> break
            :: d_step { peer < N && excluded[peer] -> peer++ }
            :: d_step { peer < N && !excluded[peer] && !alive[peer] -> peer++ }
            :: d_step { peer < N && !excluded[peer] && alive[peer] && arrival[peer] == number -> present = present | (1 << peer); peer++ }
            :: d_step { peer < N && !excluded[peer] && alive[peer] && arrival[peer] != number -> awaited = true; peer++ }
            od;
#endif
#ifdef BREAK_NOTIFICATION
            notified[me] = false;
#endif
            if
            :: awaited -> asleep[me] = !notified[me]; !asleep[me]
#ifdef DEADLINES
            :: true ->
#else
            :: !awaited ->
#endif
                PROPOSED(me, number) = number;
                AT(me, number) = present;
#ifdef BREAK_ADOPTION
                d_step { DECISION(number) = number * 4 + me; adopted[number] = present };
#else
                d_step {
                    if
                    :: DECISION(number) == word -> DECISION(number) = number * 4 + me; adopted[number] = present
                    :: else
                    fi
                };
#endif
#ifndef BREAK_WAKING
                WAKE_ALL
#else
                skip
#endif
            fi
        od;
        word = DECISION(number);
        if
        :: NUMBER(word) > number -> goto out    /* the others went on without this rank */
        :: NUMBER(word) == number -> mine = AT(RANK(word), number)
        fi;
        if
        :: PROPOSED(RANK(word), number) != number || !(mine & (1 << me)) ->
            assert(AGREEMENTS > 2 || !(adopted[number] & (1 << me)));    /* whoever is present takes the outcome */
            goto out
        :: else
        fi;
        d_step {
            assert(taken[number] == 0 || taken[number] == mine);    /* all ranks take the same outcome */
            taken[number] = mine;
            peer = 0;
            do
            :: peer < N -> excluded[peer] = excluded[peer] || !(mine & (1 << peer)); peer++
            :: else -> break
            od;
            number++
        }
    od;
out:
    arrival[me] = AGREEMENTS + 1;
    d_step { number = 0; peer = 0; present = 0; word = 0; mine = 0 };
end: false    /* the process lives on, and may still be killed */
    } unless { !alive[me] }
}

/* The watchers of the processes that live: one of them notices each death, and wakes all. */
proctype Watcher() {
    bool seen[N];
end:do
    :: d_step { !alive[0] && !seen[0] -> seen[0] = true; WAKE(0); WAKE(1); WAKE(2) }
    :: d_step { !alive[1] && !seen[1] -> seen[1] = true; WAKE(0); WAKE(1); WAKE(2) }
    :: d_step { N > 2 && !alive[N - 1] && !seen[N - 1] -> seen[N - 1] = true; WAKE(0); WAKE(1); WAKE(2) }
    od
}

proctype Killer() {
end:do
    :: d_step { MAY_DIE(0) -> alive[0] = false }
    :: d_step { MAY_DIE(1) -> alive[1] = false }
    :: d_step { N > 2 && MAY_DIE(N - 1) -> alive[N - 1] = false }
    od
}

init {
    byte rank;
    atomic {
        do
        :: rank < N -> run Rank(rank); rank++
        :: else -> break
        od;
        run Watcher();
        run Killer();
        rank = 0
    }
}
