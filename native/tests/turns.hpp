// Ranks that take turns: one of them runs at a time, until it waits for another. So each run of an operation has the
// same waits, all of which one rank, the victim, really sleeps in; and a signal can be made to reach it in any of them.
//
// The turn passes where the engine sleeps, yields or pauses: this file replaces syscall (for futexes), sched_yield and
// usleep, in a test of one source file. Threads of the engine run as they like. Ranks may be threads or forked
// processes. All loads and stores are relaxed, and the kernel's futexes are not known to ThreadSanitizer: so it does
// not take the passing of the turn for synchronisation, and still sees each race between ranks.
#pragma once
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "check.hpp"

namespace turns {

inline constexpr int kMostRanks = 8;
inline constexpr uint32_t kNobody = ~0u;
// Who runs first whenever several ranks can: the victim, which then sleeps in each of its waits, and is reached by the
// signal before the others have come; or the others, which come as far as they can without it.
enum class Order : uint32_t { VictimFirst, VictimLast };

// A word that the ranks share.
class Word {
public:
    operator uint32_t() const { return word_.load(std::memory_order_relaxed); }
    uint32_t operator=(uint32_t value) { return word_.store(value, std::memory_order_relaxed), value; }
    uint32_t add(uint32_t n) { return word_.fetch_add(n, std::memory_order_relaxed) + n; }
    uint32_t take() { return word_.exchange(0, std::memory_order_relaxed); }
    bool change(uint32_t from, uint32_t to) {
        return word_.compare_exchange_strong(from, to, std::memory_order_relaxed);
    }
    uint32_t* address() { return reinterpret_cast<uint32_t*>(&word_); }

private:
    std::atomic<uint32_t> word_{0};
};

struct Table {
    Word ranks, victim, order, signal_at;  // what begin() is given
    Word turn;                             // whose turn it is
    Word passes;                           // how often it has passed
    Word came, present[kMostRanks];
    Word waits_still[kMostRanks];  // it has had a turn since another rank went on, and its wait is not over
    Word waits;                    // of the victim, so far
    Word signalled;                // the victim has been, and its program has not been asked yet
};

// In memory that forked processes share.
inline Table& table() {
    static Table* const one = [] {
        void* const memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) std::abort();
        return new (memory) Table;
    }();
    return *one;
}
inline thread_local int me = -1;  // the rank that this thread is, while it takes turns

// The next ranks that take turns are 0 to ranks - 1. A signal reaches the victim in its wait number signal_at, which
// counts from 1; 0 for none.
inline void begin(int ranks, int victim, Order order, uint32_t signal_at) {
    Table& t = table();
    t.ranks = uint32_t(ranks), t.victim = uint32_t(victim), t.order = uint32_t(order), t.signal_at = signal_at;
    t.turn = kNobody;
    t.came = t.waits = t.signalled = 0;
    for (int r = 0; r < kMostRanks; ++r) t.present[r] = t.waits_still[r] = 0;
}

inline long call_kernel(long number, long a, long b, long c, long d, long e, long f) {
    using Syscall = long (*)(long, ...);
    static const auto real = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
    return real(number, a, b, c, d, e, f);
}
inline void wait_for_change(Word& word, uint32_t seen, std::chrono::nanoseconds limit) {
    const timespec most{0, limit.count()};
    call_kernel(SYS_futex, reinterpret_cast<long>(word.address()), FUTEX_WAIT, seen, reinterpret_cast<long>(&most), 0,
                0);
}
inline void give_to(uint32_t rank) {
    table().turn = rank;
    table().passes.add(1);
    call_kernel(SYS_futex, reinterpret_cast<long>(table().passes.address()), FUTEX_WAKE, INT32_MAX, 0, 0, 0);
}

// The rank to which `from` passes the turn, or kNobody if all the others wait still.
inline uint32_t next_after(uint32_t from) {
    const Table& t = table();
    const auto can_run = [&](uint32_t rank) { return rank != from && t.present[rank] && !t.waits_still[rank]; };
    if (t.order == uint32_t(Order::VictimFirst) && can_run(t.victim)) return t.victim;
    for (uint32_t i = 1; i <= t.ranks; ++i)
        if (const uint32_t rank = (from + i) % t.ranks; rank != t.victim && can_run(rank)) return rank;
    return can_run(t.victim) ? uint32_t(t.victim) : kNobody;
}

inline void others_go_on() {
    for (uint32_t r = 0; r < kMostRanks; ++r) table().waits_still[r] = 0;
}

// A rank that keeps its turn for long, since it waits for a thread that cannot go on, loses it.
inline void await_turn() {
    using namespace std::chrono_literals;
    Table& t = table();
    for (auto since = std::chrono::steady_clock::now(); t.turn != uint32_t(me);) {
        const uint32_t seen = t.passes, turn = t.turn;
        if (turn == uint32_t(me)) break;
        wait_for_change(t.passes, seen, 50ms);
        const auto now = std::chrono::steady_clock::now();
        if (t.passes != seen) since = now;
        else if (now - since > 400ms) t.turn.change(turn, uint32_t(me));
    }
}

// Passes the turn, and returns when it has come back.
inline void pass() {
    Table& t = table();
    if (t.turn == uint32_t(me)) {
        uint32_t next = next_after(uint32_t(me));
        if (next == kNobody) {  // until a thread of the engine has done something
            const timespec moment{0, 200'000};
            nanosleep(&moment, nullptr);
            others_go_on();
            next = next_after(uint32_t(me));
        }
        if (next == kNobody) return;  // it is alone
        give_to(next);
    }
    await_turn();
}

// Whether the signal arrives now, in the victim's next wait.
inline bool is_signalled() {
    Table& t = table();
    if (uint32_t(me) != t.victim) return false;
    if (t.waits.add(1) != t.signal_at) return false;
    t.signalled = 1;
    return true;
}

// A futex's wait. Returns 0, or the error.
inline int sleep(std::atomic<uint32_t>& word, uint32_t seen, const timespec* limit) {
    if (word.load() != seen) return EAGAIN;
    if (is_signalled()) return EINTR;
    using Nanoseconds = std::chrono::nanoseconds;
    const auto since = std::chrono::steady_clock::now();
    const Nanoseconds most =
        limit ? std::chrono::seconds(limit->tv_sec) + Nanoseconds(limit->tv_nsec) : Nanoseconds::max();
    int error = 0;
    do {
        table().waits_still[me] = 1;
        pass();
        if (word.load() == seen && std::chrono::steady_clock::now() - since >= most) error = ETIMEDOUT;
    } while (word.load() == seen && !error);
    others_go_on();
    return error;
}

// The calling thread, or process, is this rank from now on. Returns when all ranks have come, and it is its turn.
inline void enter(int rank) {
    Table& t = table();
    me = rank;
    t.present[rank] = 1;
    if (t.came.add(1) == t.ranks)
        give_to(t.order == uint32_t(Order::VictimFirst) ? uint32_t(t.victim) : (t.victim + 1) % t.ranks);
    await_turn();
}
inline void leave() {
    Table& t = table();
    t.present[me] = 0;
    others_go_on();
    if (t.turn == uint32_t(me))
        if (const uint32_t next = next_after(uint32_t(me)); next != kNobody) give_to(next);
    me = -1;
}
// For a child that a rank has forked.
inline void forget() { me = -1; }

// Whether a signal has reached the calling thread, and its program has not been asked before.
inline bool take_signal() { return uint32_t(me) == table().victim && table().signalled.take(); }

}  // namespace turns

extern "C" long syscall(long number, ...) noexcept {
    va_list list;
    va_start(list, number);
    long a[6];
    for (long& each : a) each = va_arg(list, long);
    va_end(list);
    const long command = a[1] & ~FUTEX_PRIVATE_FLAG;
    if (turns::me < 0 || number != SYS_futex || command != FUTEX_WAIT)
        return turns::call_kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    errno = turns::sleep(*reinterpret_cast<std::atomic<uint32_t>*>(a[0]), uint32_t(a[2]),
                         reinterpret_cast<const timespec*>(a[3]));
    return errno ? -1 : 0;
}

extern "C" int sched_yield() noexcept {
    thread_local int yields = 0;
    if (turns::me < 0) return int(turns::call_kernel(SYS_sched_yield, 0, 0, 0, 0, 0, 0));
    if (++yields % 1000 == 0) turns::pass();  // a loop that only yields
    return 0;
}

extern "C" int usleep(useconds_t micros) {
    const timespec time{0, long(micros) * 1000};
    if (turns::me < 0) return nanosleep(&time, nullptr);
    if (turns::is_signalled()) return errno = EINTR, -1;
    turns::table().waits_still[turns::me] = 1;
    turns::pass();
    turns::others_go_on();
    return 0;
}
