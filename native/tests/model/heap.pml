/* The heap of the segment as a model for spin: how processes reserve units, publish blocks, visit and release them,
 * and free what a process has left that was killed at any moment. README.md says which code each part models.
 *
 * spin -D sets:
 *   UNITS       of the heap
 *   A, B, C     the units of the blocks of each process; 0: the process only visits blocks
 *   N           how many of these processes there are, 2 or 3
 *   ROUNDS      how many blocks each process allocates and releases, one after the other
 *   KEEP        released blocks are kept for the next ones of their size
 *   DEATHS      how many processes may be killed, each at any moment
 *   BREAK_...   leaves out one part of the protocol; spin must find the error
 */
#ifndef UNITS
#define UNITS 3
#endif
#ifndef A
#define A 2
#endif
#ifndef B
#define B 1
#endif
#ifndef C
#define C 0
#endif
#ifndef N
#define N 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

/* A unit's word: its kind, a number, and the process that has reserved or allocated it. */
#define FREE 0
#define RESERVED 1
#define CONTINUED 2
#define RETIRED 3
#define PUBLISHED 4
#define KEPT 5
#define WORD(kind, number, owner) ((kind) + 8 * (number) + 64 * (owner))
#define KIND(word) ((word) & 7)
#define NUMBER(word) (((word) >> 3) & 7)
#define OWNER(word) ((word) >> 6)
#define COUNT(word) ((KIND(word) == FREE || KIND(word) == CONTINUED || NUMBER(word) == 0) -> 1 : NUMBER(word))

/* ---- shared memory ---- */
byte words[UNITS];
byte visitors[UNITS];

/* ---- what only the model knows ---- */
bool alive[4] = true;
bool done[3];
bool dirty[UNITS];       /* the unit's pages may hold something */
byte own[4];             /* the first unit + 1 of the process's block, from when it may write there */
byte own_units[4];
byte reading[4];         /* the first unit + 1 of the block that the process visits */

#define HAS(p, u) (alive[p] && own[p] && (u) + 1 >= own[p] && (u) + 1 < own[p] + own_units[p])
#define READS(p, u) (alive[p] && reading[p] == (u) + 1)
#define MAY_DIE(p) (alive[p] && !done[p] && alive[0] + alive[1] + alive[2] > 3 - DEATHS)

#define LOCALS byte i, u, row, after, units, word, first, round; bool ok, found

inline cas(at, old, new) {
    d_step {
        if
        :: words[at] == old -> words[at] = new; ok = true
        :: else -> ok = false
        fi
    }
}

/* Nobody uses or visits these units. */
inline check_unused(at, n) {
    u = 0;
    do
    :: u < n ->
        assert(!HAS(0, at + u) && !HAS(1, at + u) && !HAS(2, at + u));
        assert(!READS(0, at + u) && !READS(1, at + u) && !READS(2, at + u));
        u++
    :: else -> break
    od;
    u = 0
}

inline free_reserved(at, n) {
    u = 1;
    do
    :: u < n -> words[at + u] = WORD(CONTINUED, u, me); u++
    :: else -> break
    od;
    words[at] = WORD(RESERVED, 1, me);
    d_step {
        check_unused(at, n);
        do
        :: u < n -> dirty[at + u] = false; u++
        :: else -> break
        od;
        u = 0
    };
    do
    :: u < n -> words[at + u] = FREE; u++
    :: else -> break
    od;
    u = 0
}

/* Frees a retired block that nobody visits, or keeps it. */
inline free_if_unvisited(at, keep) {
    do
    ::  first = words[at];
        if :: KIND(first) != RETIRED -> break :: else fi;
        if :: visitors[at] != 0 -> break :: else fi;
        cas(at, first, WORD(RESERVED, NUMBER(first), me));
        if :: !ok -> break :: else fi;
        if
#ifdef BREAK_RECHECK
        :: true ->
#else
        :: visitors[at] != 0 -> words[at] = first    /* a visitor has come meanwhile */
        :: visitors[at] == 0 ->
#endif
            units = NUMBER(first);
            if
            :: keep -> words[at] = WORD(KEPT, units, me)
            :: !keep -> free_reserved(at, units)
            fi;
            break
        fi
    od;
    first = 0
}

/* found: whether the process has ended that has reserved the unit i, alone or as the first of several. */
inline abandoned() {
    found = false;
    if
    :: KIND(word) == RESERVED && !alive[OWNER(word)] -> found = true
    :: KIND(word) == CONTINUED && !alive[OWNER(word)] ->
#ifdef BREAK_CONTINUED
        found = true
#else
        first = words[i - NUMBER(word)];
        found = KIND(first) == FREE || KIND(first) == CONTINUED || NUMBER(first) <= NUMBER(word);
        first = 0
#endif
    :: else
    fi
}

/* One step of a walk: word is what is at i after all that can be freed there is free. */
inline look() {
    word = words[i];
    abandoned();
    if
    :: KIND(word) == RETIRED -> free_if_unvisited(i, false)
    :: KIND(word) != RETIRED && found ->
        units = COUNT(word);
        cas(i, word, WORD(RESERVED, units, me));
        if :: ok -> free_reserved(i, units) :: else fi
    :: else
    fi;
    word = words[i]
}

/* found: i is the first of n free units in a row. */
inline find(n) {
    i = 0; row = 0; after = 0;
    do
    :: i >= UNITS -> found = false; break
    :: i < UNITS ->
        look();
        d_step {
            row = (KIND(word) == FREE && i == after -> row + 1 : KIND(word) == FREE);
            after = i + 1
        };
        if
        :: row >= n -> d_step { i = after - n; found = true }; break
        :: else -> i = i + COUNT(word)
        fi
    od;
    row = 0;
    d_step { after = 0; word = 0 }
}

/* If a block of n units is kept, this process reserves it, from i on, and owns it. */
inline take_kept(n) {
    i = 0;
    do
    :: i >= UNITS || own[me] -> break
    :: i < UNITS && !own[me] ->
        look();
        if
        :: KIND(word) == KEPT && NUMBER(word) == n ->
            cas(i, word, WORD(RESERVED, n, me));
            if
            :: ok -> d_step { check_unused(i, n); own[me] = i + 1; own_units[me] = n }
            :: else -> i = i + COUNT(word)
            fi
        :: else -> i = i + COUNT(word)
        fi
    od;
    word = 0
}

inline free_kept() {
    i = 0;
    do
    :: i >= UNITS -> break
    :: i < UNITS ->
        look();
        if
        :: KIND(word) == KEPT ->
            cas(i, word, WORD(RETIRED, NUMBER(word), me));
            if :: ok -> free_if_unvisited(i, false) :: else fi
        :: else
        fi;
        i = i + COUNT(word)
    od;
    word = 0;
    ok = false
}

/* ok: this process has reserved n units from i on, which nobody had, and which are clean. */
inline claim(n) {
    row = 0;
    do
    :: row == n -> break
    :: row < n ->
        d_step {
            if
            :: words[i + row] != FREE -> ok = false
            :: else ->
                assert(!dirty[i + row]);
                ok = true;
#ifdef BREAK_CLAIM
                words[i + row] = (row -> WORD(CONTINUED, row, me) : WORD(RESERVED, n, me))
#else
                words[i + row] = (row -> WORD(CONTINUED, row, me) : WORD(RESERVED, 1, me))
#endif
            fi
        };
        if
        :: ok -> row++
        :: !ok ->
            do
            :: row > 0 -> words[i + row - 1] = FREE; row--
            :: else -> break
            od;
            break
        fi
    od;
    if
    :: ok ->
        d_step {
            words[i] = WORD(RESERVED, n, me);
            own[me] = i + 1; own_units[me] = n; row = 0;
            do
            :: row < n -> dirty[i + row] = true; row++
            :: else -> break
            od;
            row = 0
        }
    :: else
    fi
}

inline visit() {
    i = 0;
    do
    :: i >= UNITS -> break
    :: i < UNITS ->
        look();
        if
        :: KIND(word) == PUBLISHED ->
            visitors[i]++;
#ifdef BREAK_VISIT
            reading[me] = i + 1;
#else
            d_step { if :: KIND(words[i]) == PUBLISHED -> reading[me] = i + 1 :: else fi };
#endif
            d_step { reading[me] = 0; visitors[i]--; found = visitors[i] == 0 };
            if :: found -> free_if_unvisited(i, false) :: else fi
        :: else
        fi;
        i = i + COUNT(word)
    od
}

/* Each process releases its own block; any process may have retired it while others visit it. */
inline release(n) {
    i = own[me] - 1;
    d_step { own[me] = 0; words[i] = WORD(RETIRED, n, me) };
#ifdef KEEP
    free_if_unvisited(i, true)
#else
    free_if_unvisited(i, false)
#endif
}

proctype Process(byte me; byte n) {
    LOCALS;
    {
    do
    :: round == ROUNDS || n == 0 -> break
    :: round < ROUNDS && n > 0 ->
#ifdef KEEP
        take_kept(n);
#endif
        ok = own[me] != 0;
        if
        :: ok
        :: !ok ->
            find(n);
            if
            :: found -> claim(n)    /* not ok: another process was faster */
            :: !found ->    /* no memory */
#ifdef KEEP
                free_kept()
#else
                ok = false
#endif
            fi
        fi;
        if
        :: ok -> words[i] = WORD(PUBLISHED, n, me); visit(); release(n)
        :: else
        fi;
        i = 0;
        d_step { round++; word = 0; units = 0; ok = false; found = false }
    od;
    if :: n == 0 -> visit() :: else fi;
    i = 0;
    d_step { round = 0; word = 0; units = 0; ok = false; found = false; done[me] = true }
end: false
    } unless { !alive[me] }
}

/* When the processes have ended, one walk frees all that nobody has, but not what is kept or was visited by a process
 * when it was killed. */
#define ENDED(p) (done[p] || !alive[p])
proctype Sweeper(byte me) {
    LOCALS;
    ENDED(0) && ENDED(1) && ENDED(2);
    do
    :: i >= UNITS -> break
    :: i < UNITS -> look(); i = i + COUNT(word)
    od;
    i = 0;
    d_step {
        do
        :: i < UNITS ->
            word = words[i];
            assert(KIND(word) == FREE || KIND(word) == PUBLISHED || KIND(word) == KEPT || (KIND(word) == RETIRED && visitors[i]));
            assert(KIND(word) != FREE || !dirty[i]);
            i = i + COUNT(word)
        :: else -> break
        od;
        i = 0
    }
}

proctype Killer() {
end:do
    :: d_step { MAY_DIE(0) -> alive[0] = false }
    :: d_step { MAY_DIE(1) -> alive[1] = false }
    :: d_step { MAY_DIE(2) -> alive[2] = false }
    od
}

init {
    atomic {
        run Process(0, A);
        run Process(1, B);
        if :: N == 3 -> run Process(2, C) :: N == 2 -> done[2] = true fi;
        run Sweeper(3);
        run Killer()
    }
}
