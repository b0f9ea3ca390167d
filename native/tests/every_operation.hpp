// Every operation of a communicator, with each of its algorithms, as a rank makes it in a test of faults: it has memory
// of its own, which nobody may write once it has returned, and checks its result.
#pragma once
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "ranks.hpp"

namespace every {

using namespace rankwise;

// A rank's arrays. They are not freed when they are released, but marked, so that a late write is seen and does no
// harm.
class Arrays {
public:
    float* make(uint64_t count) { return remember(std::make_shared<std::vector<float>>(count + 1), count); }
    float* registered(Comm& c, uint64_t count) {
        const auto memory = c.allocate((count + 1) * sizeof(float));
        arrays_.push_back({memory, reinterpret_cast<float*>(memory->data()), count});
        return arrays_.back().data;
    }
    void keep_room() { arrays_.reserve(64); }
    // The rank has returned from the operation.
    void release() {
        for (const Array& one : arrays_) std::fill_n(one.data, one.count, kReleased);
    }
    // Checks, when all ranks have, that nobody has written since.
    void check(const std::string& what) {
        for (const Array& one : arrays_)
            for (uint64_t i = 0; i < one.count; ++i)
                if (one.data[i] != kReleased) {
                    CHECK(false, what << ": element " << i << " of " << one.count << " was written after the call");
                    break;
                }
        arrays_.clear();
    }

private:
    static constexpr float kReleased = -12345;
    struct Array {
        std::shared_ptr<void> owner;
        float* data;
        uint64_t count;
    };
    float* remember(const std::shared_ptr<std::vector<float>>& owner, uint64_t count) {
        arrays_.push_back({owner, owner->data(), count});
        return owner->data();
    }
    std::vector<Array> arrays_;
};

struct Collective;

// One rank in one call.
struct Rank {
    Comm& c;
    const std::string what;  // for the texts of checks
    const int lost;          // the rank that may leave the group meanwhile, or -1
    const int n = c.world_size(), me = c.rank(), root = n - 1;
    Arrays arrays{};
    bool again = false;  // a signal handler has interrupted the call, and the rank makes it once more
    int done = 0;        // the parts of the call that are complete
    std::vector<std::shared_ptr<Task>> tasks{};
    std::vector<std::shared_ptr<const Collective>> started{};
    float* x = nullptr;
    std::vector<std::shared_ptr<Request>> requests{};  // that may be left over

    float* room(uint64_t count, bool registered = false) {  // zeros
        return registered ? arrays.registered(c, count) : arrays.make(count);
    }
    float* own(uint64_t count, bool registered = false) {
        float* const x = room(count, registered);
        numbers::of(me).fill(x, count);
        return x;
    }
    void expect(const float* x, uint64_t count, const numbers::Run& right, uint64_t from = 0) const {
        CHECK(right.equals(x, count, from), what << ": " << count << " elements are wrong on rank " << me);
    }
    // Blocks of this many elements, one from each rank; each begins with its rank's element `from`.
    void expect_blocks(const float* x, uint64_t size, uint64_t from = 0) const {
        for (int r = 0; r < n; ++r) expect(x + size * uint64_t(r), size, numbers::of(r), from);
    }
    // So that what a call has begun is kept, although the rank is refused memory.
    void keep_room() {
        tasks.reserve(8), started.reserve(8), requests.reserve(8);
        arrays.keep_room();
    }
    // Parts of a call, each of which is made until it is complete.
    template <class Part> void part(int number, Part&& make) {
        if (done > number) return;
        make();
        done = number + 1;
    }
};

struct Case {
    std::string name;
    std::function<void(Rank&)> call;
    Settings settings{};
    // What an interrupt leaves: a failed group; or what can be called, or waited for, again.
    enum Interrupted { Fails, Continues, Either } interrupted = Fails;
    bool any_source = false;  // waits for a message from any rank, and so until all others have left
};

// How a call ended.
struct Ending {
    std::string error;  // its type, or ""
    int lost = -1;      // the rank that a PeerLost names
    std::string text;
    template <class Call> static Ending of(const Call& call) {
        Ending ending;
        ending.error = ranks::thrown([&] {
            try {
                call();
            } catch (const PeerLost& e) {
                ending.lost = e.rank;
                ending.text = e.what();
                throw;
            } catch (const std::bad_alloc&) {
                ending.text = "bad_alloc";
            } catch (const std::exception& e) {
                ending.text = e.what();
                throw;
            }
        });
        if (ending.text == "bad_alloc") ending.error = ending.text;
        return ending;
    }
    bool names(int rank) const { return error == "PeerLost" && lost == rank; }
};

// Whether a test tries all: `make test-all PART=faults`. Otherwise it takes a sample.
inline bool all() {
    const char* const faults = std::getenv("RANKWISE_FAULTS");
    return faults && std::string(faults) == "full";
}

inline uint8_t* bytes(float* x) { return reinterpret_cast<uint8_t*>(x); }

// A collective of blocks of one size. count: of each rank's array, as rankwise bench counts, a multiple of the ranks.
struct Collective {
    Rank& r;
    const Op op;
    const uint64_t count, part = count / uint64_t(r.n), before = part * uint64_t(r.me);
    float *const x, *const y;

    Collective(Rank& r, Op op, uint64_t count, bool registered)
        : r(r), op(op), count(count), x(r.own(count, registered)), y(r.room(count * uint64_t(r.n), registered)) {}
    void make(const CallOptions& o = {}) const {
        constexpr DType f32 = DType::F32;
        constexpr ReduceOp sum = ReduceOp::SUM;
        float* const at_root = r.me == r.root ? y : nullptr;
        switch (op) {
        case Op::AllReduce: return r.c.all_reduce(x, count, f32, sum, o);
        case Op::Broadcast: return r.c.broadcast(x, count, f32, r.root, o);
        case Op::Reduce: return r.c.reduce(x, count, f32, sum, r.root, o);
        case Op::AllGather: return r.c.all_gather(x, y, count, f32, o);
        case Op::Gather: return r.c.gather(x, at_root, count, f32, r.root, o);
        case Op::Scatter: return r.c.scatter(r.me == r.root ? x : nullptr, y, part, f32, r.root, o);
        case Op::ReduceScatter: return r.c.reduce_scatter(x, y, part, f32, sum, o);
        case Op::AllToAll: return r.c.all_to_all(x, y, part, f32, o);
        case Op::Scan: return r.c.scan(x, y, count, f32, sum, o);
        case Op::Exscan: return r.c.exscan(x, y, count, f32, sum, o);
        default: CHECK(false, "no such operation");
        }
    }
    void check() const {
        const numbers::Run all = numbers::sum_of(r.n), own = numbers::of(r.me), roots = numbers::of(r.root);
        switch (op) {
        case Op::AllReduce: return r.expect(x, count, all);
        case Op::Broadcast: return r.expect(x, count, roots);
        case Op::Reduce: return r.expect(x, count, r.me == r.root ? all : own);
        case Op::AllGather: return r.expect_blocks(y, count);
        case Op::Gather: return r.expect_blocks(y, r.me == r.root ? count : 0);
        case Op::Scatter: return r.expect(y, part, roots, before);
        case Op::ReduceScatter: return r.expect(y, part, all, before);
        case Op::AllToAll: return r.expect_blocks(y, part, before);
        case Op::Scan: return r.expect(y, count, numbers::sum_of(r.me + 1));
        default: return r.expect(y, count, numbers::sum_of(r.me));
        }
    }
};

inline bool works_in_registered(Algorithm a) {
    return a == Algorithm::Registered || a == Algorithm::RegisteredPut || a == Algorithm::RegisteredSplit;
}

// A collective of blocks of one size, blocking and started, with the algorithm that is forced on it, if any.
inline void add_collective(std::vector<Case>& all, int n, Op op, Algorithm algorithm, uint64_t count) {
    const bool registered = works_in_registered(algorithm);
    Settings settings;
    settings.oversubscribed = true;
    std::string text = name(op);
    if (algorithm != Algorithm::None) {
        settings.forced = tuning::parse_forced({{name(op), tuning::name(algorithm)}}, settings.backend);
        text += std::string("=") + tuning::name(algorithm);
    }
    count *= uint64_t(n);
    text += " of " + std::to_string(count);
    all.push_back({text,
                   [=](Rank& r) {
                       const Collective call(r, op, count, registered);
                       call.make();
                       call.check();
                   },
                   settings});
    all.push_back({"started " + text,
                   [=](Rank& r) {
                       r.part(0, [&] {
                           r.started.push_back(std::make_shared<Collective>(r, op, count, registered));
                           r.tasks.push_back(
                               r.c.start([call = r.started.back()](const CallOptions& o) { call->make(o); }));
                       });
                       r.tasks.back()->wait(5);
                       r.started.back()->check();
                   },
                   settings, Case::Either});
}

// Counts for the vector variants: rank r has these many.
inline Counts uneven(int n, uint64_t most) {
    Counts counts;
    for (int r = 0; r < n; ++r) counts.push_back(most / uint64_t(r + 1));
    return counts;
}
inline uint64_t sum(const Counts& counts, int end) {
    return std::accumulate(counts.begin(), counts.begin() + end, uint64_t(0));
}

inline void add_vector_variants(std::vector<Case>& all, int n, uint64_t most) {
    constexpr DType f32 = DType::F32;
    const Counts counts = uneven(n, most);
    const uint64_t total = sum(counts, n);
    const std::string text = " of " + std::to_string(most);
    const auto check_all = [=](Rank& r, const float* x) {
        for (int p = 0; p < n; ++p) r.expect(x + sum(counts, p), counts[size_t(p)], numbers::of(p));
    };
    const auto own_count = [=](const Rank& r) { return counts[size_t(r.me)]; };
    all.push_back({"all_gather_v" + text, [=](Rank& r) {
                       float* const y = r.room(total);
                       r.c.all_gather_v(r.own(own_count(r)), y, counts, f32);
                       check_all(r, y);
                   }});
    all.push_back({"gather_v" + text, [=](Rank& r) {
                       float* const y = r.room(total);
                       r.c.gather_v(r.own(own_count(r)), r.me == r.root ? y : nullptr, counts, f32, r.root);
                       if (r.me == r.root) check_all(r, y);
                   }});
    all.push_back({"scatter_v" + text, [=](Rank& r) {
                       float* const y = r.room(own_count(r));
                       r.c.scatter_v(r.me == r.root ? r.own(total) : nullptr, y, counts, f32, r.root);
                       r.expect(y, own_count(r), numbers::of(r.root), sum(counts, r.me));
                   }});
    all.push_back({"reduce_scatter_v" + text, [=](Rank& r) {
                       float* const y = r.room(own_count(r));
                       r.c.reduce_scatter_v(r.own(total), y, counts, f32, ReduceOp::SUM);
                       r.expect(y, own_count(r), numbers::sum_of(r.n), sum(counts, r.me));
                   }});
    all.push_back({"all_to_all_v" + text, [=](Rank& r) {  // rank r receives counts[r] from each
                       const Counts in(size_t(n), own_count(r));
                       float* const y = r.room(own_count(r) * uint64_t(n));
                       r.c.all_to_all_v(r.own(total), y, counts, in, f32);
                       r.expect_blocks(y, own_count(r), sum(counts, r.me));
                   }});
}

// Blocks whose sizes only the ranks themselves know.
inline void add_sized(std::vector<Case>& all, int n, uint64_t most) {
    const Row row{DType::F32, 1};
    const Counts counts = uneven(n, most);
    const uint64_t total = sum(counts, n);
    const std::string text = " of " + std::to_string(most) + " at most, sized";
    const auto check_all = [=](Rank& r, const float* x) {
        for (int p = 0; p < n; ++p) r.expect(x + sum(counts, p), counts[size_t(p)], numbers::of(p));
    };
    const auto own_count = [=](const Rank& r) { return counts[size_t(r.me)]; };
    all.push_back({"gather" + text, [=](Rank& r) {
                       float* const y = r.room(total);
                       const auto rooms = [&](const Counts& found) {
                           std::vector<uint8_t*> places;
                           for (int p = 0; p < n; ++p) places.push_back(bytes(y + sum(found, p)));
                           return places;
                       };
                       r.c.gather_sized(r.own(own_count(r)), own_count(r), row, rooms, r.root);
                       if (r.me == r.root) check_all(r, y);
                   }});
    all.push_back({"all_gather" + text, [=](Rank& r) {
                       float* const y = r.room(total);
                       r.c.all_gather_sized(r.own(own_count(r)), own_count(r), row,
                                            [&](const Counts&) { return bytes(y); });
                       check_all(r, y);
                   }});
    all.push_back({"all_to_all" + text, [=](Rank& r) {
                       float* const y = r.room(own_count(r) * uint64_t(n));
                       r.c.all_to_all_sized(r.own(total), counts, row, [&](const Counts&) { return bytes(y); });
                       r.expect_blocks(y, own_count(r), sum(counts, r.me));
                   }});
    all.push_back({"scatter" + text, [=](Rank& r) {
                       float* const y = r.room(own_count(r));
                       collectives::Division division{sizeof(float), r.me == r.root ? counts : Counts(), {7}, {}};
                       r.c.scatter_sized(division, r.own(total), [&](size_t) { return bytes(y); }, r.root);
                       CHECK(division.counts == counts, r.what);
                       r.expect(y, own_count(r), numbers::of(r.root), sum(counts, r.me));
                   }});
    all.push_back({"scatter of " + std::to_string(most) + " for each and a rest, even", [=](Rank& r) {
                       const uint64_t rest = uint64_t(n) / 2, own = most + (uint64_t(r.me) < rest);
                       float* const y = r.room(most + 1);
                       collectives::Division division{sizeof(float), {}, {7}, most * uint64_t(n) + rest};
                       r.c.scatter_sized(division, r.own(*division.items), [&](size_t) { return bytes(y); }, r.root);
                       r.expect(y, own, numbers::of(r.root), most * uint64_t(r.me) + std::min(uint64_t(r.me), rest));
                   }});
}

// Messages of this many elements.
inline void add_messages(std::vector<Case>& all, uint64_t count) {
    constexpr DType f32 = DType::F32;
    const std::string text = " of " + std::to_string(count);
    // Rank 0 sends to 1, which sends to 2, and so on, to rank 0.
    const auto in_turn = [=](Rank& r, const auto& send, const auto& receive) {
        const int before = (r.me + r.n - 1) % r.n, next = (r.me + 1) % r.n;
        for (int step = 0; step < 2; ++step)
            r.part(step, [&] {
                if ((step == 0) == (r.me == 0)) send(r, next);
                else receive(r, before);
            });
    };
    const auto start_both = [=](Rank& r, int from, int to) {
        r.part(0, [&] {
            r.x = r.room(count);
            r.requests.push_back(r.c.messages().recv({r.x, count, f32, from, 0}));
        });
        r.part(1, [&] { r.requests.push_back(r.c.messages().send({r.own(count), count, f32, to, 0})); });
    };
    const auto send_again = [=](Rank& r, int to) {  // the message that was interrupted may have been delivered
        r.requests.push_back(r.c.messages().send({r.own(count), count, f32, to, 0}));
    };
    all.push_back({"send and recv" + text,
                   [=](Rank& r) {
                       const auto send = [&](Rank&, int to) {
                           if (r.again) send_again(r, to);
                           else r.c.messages().send_now({r.own(count), count, f32, to, 0});
                       };
                       const auto receive = [&](Rank&, int from) {
                           float* const x = r.room(count);
                           r.c.messages().recv_now({x, count, f32, from, 0});
                           r.expect(x, count, numbers::of(from));
                       };
                       in_turn(r, send, receive);
                   },
                   {},
                   Case::Continues});
    all.push_back({"recv of any length, from any rank" + text,
                   [=](Rank& r) {
                       const auto send = [&](Rank&, int to) {
                           if (r.again) send_again(r, to);
                           else r.c.messages().send_now({r.own(count), count, f32, to, 0});
                       };
                       const auto receive = [&](Rank&, int from) {
                           std::vector<float> kept(count);
                           Arrival found{};
                           const auto accept = [&](const MessageHeader& h) {
                               return h.bytes <= count * sizeof(float) ? bytes(kept.data()) : nullptr;
                           };
                           const auto message = r.c.messages().recv_any_now(Wanted::Any, kAny, 0, accept, found, {});
                           const Memory memory = message ? message->take_memory() : Memory();
                           CHECK_EQ(found.source, from);
                           r.expect(memory ? reinterpret_cast<const float*>(memory.data()) : kept.data(), count,
                                    numbers::of(from));
                       };
                       in_turn(r, send, receive);
                   },
                   {},
                   Case::Continues,
                   true});
    all.push_back({"probe, and synchronous send" + text,
                   [=](Rank& r) {
                       const auto send = [&](Rank&, int to) {
                           if (r.requests.empty())
                               r.requests.push_back(
                                   r.c.messages().send({r.own(count), count, f32, to, 0, Send::Mode::Synchronous}));
                           r.requests.back()->wait(5);
                       };
                       const auto receive = [&](Rank&, int from) {
                           const auto found = r.c.messages().await_arrival(from, 0, 5);
                           CHECK(found && found->count == count, r.what);
                           float* const x = r.room(count);
                           r.c.messages().recv_now({x, count, f32, from, 0});
                           r.expect(x, count, numbers::of(from));
                       };
                       in_turn(r, send, receive);
                   },
                   {},
                   Case::Continues});
    all.push_back({"started send and recv" + text,
                   [=](Rank& r) {
                       const int before = (r.me + r.n - 1) % r.n, next = (r.me + 1) % r.n;
                       start_both(r, before, next);
                       for (const auto& request : r.requests) request->wait(5);
                       r.expect(r.x, count, numbers::of(before));
                   },
                   {},
                   Case::Continues});
    all.push_back({"sync" + text,
                   [=](Rank& r) {
                       const int before = (r.me + r.n - 1) % r.n, next = (r.me + 1) % r.n;
                       start_both(r, before, next);
                       r.c.sync();
                       r.expect(r.x, count, numbers::of(before));
                   },
                   {},
                   Case::Continues});
    all.push_back({"exchange" + text,
                   [=](Rank& r) {
                       std::vector<Send> sends;
                       std::vector<Receive> receives;
                       for (int p = 0; p < r.n; ++p) {
                           if (p == r.me) continue;
                           sends.push_back({r.own(count), count, f32, p, 0});
                           receives.push_back({r.room(count), count, f32, p, 0});
                       }
                       if (r.again) {  // what was sent may have been delivered
                           for (const Send& each : sends) r.requests.push_back(r.c.messages().send(each));
                           sends.clear();
                       }
                       r.c.messages().exchange(sends, receives);
                       for (const Receive& each : receives)
                           r.expect(static_cast<const float*>(each.data), count, numbers::of(each.from));
                   },
                   {},
                   Case::Continues});
}

// Operations of the group itself.
inline void add_of_groups(std::vector<Case>& all) {
    all.push_back({"barrier", [](Rank& r) { r.c.barrier(); }});
    all.push_back({"started barrier",
                   [](Rank& r) {
                       r.part(0, [&] {
                           r.tasks.push_back(r.c.start([&r](const CallOptions& o) { r.c.barrier_without_sync(o); }));
                       });
                       r.tasks.back()->wait(5);
                   },
                   {},
                   Case::Either});
    all.push_back({"several started, and a blocking call behind them",
                   [](Rank& r) {
                       int number = 0;
                       for (const uint64_t count : {12, 60'000})
                           r.part(number++, [&] {
                               r.started.resize(size_t(number) - 1);
                               r.started.push_back(std::make_shared<Collective>(r, Op::AllReduce, count, false));
                               r.tasks.push_back(
                                   r.c.start([call = r.started.back()](const CallOptions& o) { call->make(o); }));
                           });
                       r.part(number, [&] { r.c.barrier(); });
                       for (const auto& task : r.tasks) task->wait(5);
                       for (const auto& call : r.started) call->check();
                   },
                   {},
                   Case::Either});
    all.push_back({"split", [](Rank& r) {
                       const auto half = r.c.split(r.me % 2, -r.me);
                       CHECK_EQ(half->world_size(), r.me % 2 ? r.n / 2 : (r.n + 1) / 2);
                       half->close(5);
                   }});
    // These go on without a rank that has been lost.
    all.push_back({"agree",
                   [](Rank& r) {
                       const int64_t agreed = r.c.agree(~(1 << r.me)), all_came = ~((1 << r.n) - 1);
                       CHECK(agreed == all_came || (agreed == (all_came | 1 << r.lost) && r.lost != r.me), r.what);
                   },
                   {},
                   Case::Continues});
    all.push_back({"shrink",
                   [](Rank& r) {
                       const auto same = r.c.shrink();
                       CHECK(same->world_size() == r.n || (same->world_size() == r.n - 1 && r.lost >= 0), r.what);
                       same->close(5);
                   },
                   {},
                   Case::Continues});
}

inline std::vector<Case> operations(int n) {
    std::vector<Case> all;
    for (const auto& [op, list] : tuning::algorithms())
        for (const Algorithm algorithm : list) {
            if (tuning::splits(algorithm) && n != 2) continue;
            if (algorithm == Algorithm::Inline) add_collective(all, n, op, algorithm, 24 / uint64_t(n * n));
            else add_collective(all, n, op, algorithm, 600);
            if (algorithm == Algorithm::Staged) add_collective(all, n, op, algorithm, 70'000);  // several pieces
        }
    for (const Op op : {Op::Scan, Op::Exscan})
        for (const uint64_t count : {4, 70'000}) add_collective(all, n, op, Algorithm::None, count);
    for (const uint64_t most : {6, 400, 70'000}) add_vector_variants(all, n, most), add_sized(all, n, most);
    // In a slot of the ring, in several, offered by its sender, and copied by both ranks.
    for (const uint64_t count : {2, 6'000, 50'000, 400'000}) add_messages(all, count);
    add_of_groups(all);
    for (Case& one : all) one.settings.oversubscribed = true;
    return all;
}

}  // namespace every
