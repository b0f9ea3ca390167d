// Tests every algorithm of every operation, forced, and the ones that the tuning table chooses on either side of each
// threshold; oversubscribed and not, with and without single copy, on any machine. An algorithm that cannot run is an
// error on every rank, and the group continues.
#include "kernels/non_temporal.hpp"
#include "numbers.hpp"
#include "ranks.hpp"

using namespace rankwise;
using numbers::Run;

namespace {

// Floats in registered or private memory.
struct Floats {
    std::shared_ptr<Registered> registered;
    std::vector<float> plain;
    float* data;
    uint64_t count;
    Floats(Comm& c, bool in_segment, uint64_t count) : count(count) {
        if (in_segment) registered = c.allocate(count * sizeof(float));
        else plain.resize(count);
        data = in_segment ? reinterpret_cast<float*>(registered->data()) : plain.data();
    }
    // Checks that they equal `right` from its element `from` on.
    void check(const std::string& what, const Run& right, uint64_t from = 0) const {
        CHECK(right.equals(data, count, from), what << ": " << count << " elements");
    }
    // Checks that they are blocks of equal size, one from each rank; each begins with its rank's element `from`.
    void check_blocks(const std::string& what, int n, uint64_t from = 0) const {
        const uint64_t size = count / uint64_t(n);
        for (int r = 0; r < n; ++r)
            CHECK(numbers::of(r).equals(data + size * uint64_t(r), size, from),
                  what << ": the block of rank " << r << ", " << size << " elements");
    }
};

// One call in which each rank's array has `count` elements (counted as rankwise bench does), a multiple of the ranks.
void call(Comm& c, Op op, uint64_t count, bool registered, const std::string& what) {
    const int n = c.world_size(), me = c.rank(), root = n - 1;
    const uint64_t part = count / uint64_t(n), before = part * uint64_t(me);
    constexpr DType f32 = DType::F32;
    constexpr ReduceOp sum = ReduceOp::SUM;
    const Run own = numbers::of(me), roots = numbers::of(root), total = numbers::sum_of(n);
    Floats x(c, registered, count);
    own.fill(x.data, count);
    switch (op) {
    case Op::AllReduce: c.all_reduce(x.data, count, f32, sum); return x.check(what, total);
    case Op::Broadcast: c.broadcast(x.data, count, f32, root); return x.check(what, roots);
    case Op::Reduce: c.reduce(x.data, count, f32, sum, root); return x.check(what, me == root ? total : own);
    case Op::AllGather: {
        Floats all(c, registered, count * uint64_t(n));
        c.all_gather(x.data, all.data, count, f32);
        return all.check_blocks(what, n);
    }
    case Op::Gather: {
        Floats all(c, registered, me == root ? count * uint64_t(n) : 0);
        c.gather(x.data, me == root ? all.data : nullptr, count, f32, root);
        return all.check_blocks(what, n);
    }
    case Op::Scatter: {
        Floats mine(c, registered, part);
        c.scatter(me == root ? x.data : nullptr, mine.data, part, f32, root);
        return mine.check(what, roots, before);
    }
    case Op::ReduceScatter: {
        Floats mine(c, registered, part);
        c.reduce_scatter(x.data, mine.data, part, f32, sum);
        return mine.check(what, total, before);
    }
    case Op::AllToAll: {
        Floats all(c, registered, count);
        c.all_to_all(x.data, all.data, part, f32);
        return all.check_blocks(what, n, before);
    }
    default: CHECK(false, "no such operation");
    }
}

std::string names(const std::vector<Algorithm>& algorithms) {
    std::string text;
    for (Algorithm a : algorithms) text += std::string(text.empty() ? "" : ", then ") + tuning::name(a);
    return text;
}

// The counts, multiples of the ranks, at which the table's choice changes.
std::vector<uint64_t> thresholds(const Comm& c, Op op) {
    const uint64_t n = uint64_t(c.world_size()), most = (ranks::shortened() ? 2 << 20 : 8 << 20) / sizeof(float) / n;
    const auto chosen = [&](uint64_t units) { return c.algorithms(op, units * n * sizeof(float)); };
    std::vector<uint64_t> found;
    for (uint64_t low = 1; low < most;) {
        uint64_t high = low;
        while (high < most && chosen(high) == chosen(low)) high *= 2;
        if (high >= most) break;
        while (high - low > 1) {
            const uint64_t middle = (low + high) / 2;
            (chosen(middle) == chosen(low) ? low : high) = middle;
        }
        found.push_back(high * n);
        low = high;
    }
    return found;
}

Settings settings(bool oversubscribed, bool single_copy, const char* operation = nullptr,
                  const char* algorithm = nullptr) {
    Settings s{{}, oversubscribed, single_copy};
    if (operation) s.forced = tuning::parse_forced({{operation, algorithm}}, s.backend);
    return s;
}

Settings tuned(bool oversubscribed, const std::vector<tuning::NamedValue>& values) {
    Settings s = settings(oversubscribed, true);
    s.tuning = values;
    return s;
}

std::string settings_text(const Settings& s) {
    return std::string(*s.oversubscribed ? " oversubscribed" : "") + (s.single_copy ? "" : " without single copy");
}

void either_side_of_each_threshold(int n, const Settings& s) {
    ranks::run(
        n,
        [&](Comm& c) {
            set_peers_far(!s.single_copy);  // both ways to write the slots
            for (const auto& [op, list] : tuning::algorithms()) {
                const auto found = thresholds(c, op);
                CHECK(found.size() >= 2, name(op) << " has " << found.size() << " thresholds");
                for (uint64_t from : found)
                    for (uint64_t count : {from - uint64_t(n), from})
                        for (bool registered : {false, true})
                            call(c, op, count, registered,
                                 name(op) + settings_text(s) + " of " + std::to_string(count) + " by " +
                                     names(c.algorithms(op, count * sizeof(float))));
            }
            c.barrier();
        },
        60, s);
}

bool works_in_registered(Algorithm a) {
    return a == Algorithm::Registered || a == Algorithm::RegisteredPut || a == Algorithm::RegisteredSplit;
}

// Forces an algorithm, with sizes around the table's thresholds and around the sizes of the slots.
void forced_algorithm(int n, bool oversubscribed, Op op, Algorithm algorithm) {
    const Settings s = settings(oversubscribed, true, name(op), tuning::name(algorithm));
    const bool small = algorithm == Algorithm::Inline, flat = algorithm == Algorithm::Flat && op == Op::AllReduce;
    const std::string what =
        std::string(name(op)) + "=" + tuning::name(algorithm) + settings_text(s) + " on " + std::to_string(n);
    ranks::run(
        n,
        [&](Comm& c) {
            const uint64_t unit = uint64_t(n);
            if (tuning::splits(algorithm) && n != 2) {
                CHECK_EQ(ranks::thrown([&] { call(c, op, unit, true, what); }), "Unsupported");
                CHECK(c.algorithms(op, 48).empty(), what);
                return;
            }
            CHECK(c.algorithms(op, 48) == std::vector<Algorithm>{algorithm}, what);
            CHECK_EQ(c.algorithms(op, 1 << 20).empty(), small || flat);
            for (uint64_t count :
                 {uint64_t(0), unit, 24 / unit * unit, 40 / unit * unit, 4097 * unit, 70001 * unit, 300007 * unit}) {
                if (ranks::shortened() && count > 70001 * unit) continue;
                const uint64_t bytes = count * sizeof(float);
                if ((small && bytes > kInline) || (flat && bytes > kFlatLimit)) {
                    CHECK_EQ(ranks::thrown([&] { call(c, op, count, false, what); }), "Unsupported");
                    continue;
                }
                call(c, op, count, works_in_registered(algorithm), what + " of " + std::to_string(count));
            }
            if (works_in_registered(algorithm))
                CHECK_EQ(ranks::thrown([&] { call(c, op, 1000 * unit, false, what); }), "Unsupported");
            float one = 1;  // the group continues, and groups split off it force the same algorithm
            if (op != Op::AllReduce) c.all_reduce(&one, 1, DType::F32, ReduceOp::SUM), CHECK_EQ(one, float(n));
            const auto half = c.split(c.rank() % 2, 0);
            CHECK(half->world_size() == 1 || half->algorithms(op, 48) == std::vector<Algorithm>{algorithm}, what);
            half->close(5);
        },
        60, s);
}

void forbidden_single_copy() {
    ranks::run(
        2,
        [](Comm& c) {
            std::vector<float> x(100000, 1);
            try {
                c.all_reduce(x.data(), x.size(), DType::F32, ReduceOp::SUM);
                CHECK(false, "it ran");
            } catch (const Unsupported& e) {
                CHECK_EQ(e.operation, "RANKWISE_ALGORITHM=all_reduce=single_copy");
                CHECK_EQ(e.backend, "shm");
                CHECK(e.why.starts_with("it needs ranks that can read and write each other's memory"), e.why);
            }
            c.barrier();
        },
        60, settings(false, false, "all_reduce", "single_copy"));
}

std::string refusal(const char* operation, const char* algorithm) {
    try {
        tuning::parse_forced({{operation, algorithm}}, "shm");
    } catch (const BadArgument& e) {
        return e.what();
    }
    return "";
}

void unknown_names() {
    CHECK_EQ(refusal("allreduce", "staged"),
             "RANKWISE_ALGORITHM: the operation 'allreduce' given to shm, expected one of all_reduce, broadcast, "
             "reduce, all_gather, gather, scatter, reduce_scatter, all_to_all");
    CHECK_EQ(refusal("broadcast", "ring"),
             "RANKWISE_ALGORITHM: the algorithm 'ring' given for broadcast of shm, expected one of inline, staged, "
             "single_copy, single_copy_split, registered, registered_split");
}

std::string refusal_to_tune(const char* cores, const char* threshold) {
    try {
        tuning::parse_tuning({{cores, threshold, 1}});
    } catch (const BadArgument& e) {
        return e.what();
    }
    return "";
}

// A tuning file's thresholds replace the defaults of the conditions for which they are given.
void tuned_thresholds() {
    const std::vector<tuning::NamedValue> values = {
        {"own_cores", "flat_all_reduce", 600},         {"own_cores", "registered_reduction", 1000},
        {"own_cores", "single_copy_all_reduce", 5000}, {"own_cores", "registered_block", 300},
        {"own_cores", "single_copy_broadcast", 9000},  {"own_cores", "single_copy_all_gather", Thresholds::kNever},
        {"own_cores", "put_all_gather", 7000},         {"own_cores", "single_copy_reduce", 2000},
        {"own_cores", "single_copy_scatter", 200},     {"own_cores", "flat_reduce", Thresholds::kNever},
        {"own_cores", "single_copy_gather", 24 * KiB},
    };
    using enum Algorithm;
    using List = std::vector<Algorithm>;
    ranks::run(
        3,
        [](Comm& c) {
            const bool direct = c.conditions().single_copy;
            CHECK(c.algorithms(Op::AllReduce, 200) == List{Flat});
            CHECK(c.algorithms(Op::AllReduce, 201) == List{Staged});
            CHECK(c.algorithms(Op::AllReduce, 1000) == (List{Registered, Staged}));
            CHECK(c.algorithms(Op::AllReduce, 5000) ==
                  (direct ? List{Registered, SingleCopy, Staged} : List{Registered, Staged}));
            CHECK(c.algorithms(Op::Reduce, 2000) ==
                  (direct ? List{Registered, SingleCopy, Flat} : List{Registered, Flat}));
            CHECK(c.algorithms(Op::Broadcast, 8999) == (List{Registered, Staged}));
            CHECK(c.algorithms(Op::Broadcast, 9000) == (direct ? List{SingleCopy, Staged} : List{Registered, Staged}));
            CHECK(c.algorithms(Op::AllGather, 299) == List{Staged});
            CHECK(c.algorithms(Op::AllGather, 6999) == (List{Registered, Staged}));
            CHECK(c.algorithms(Op::AllGather, 7000) == (List{direct ? SingleCopyPut : RegisteredPut, Staged}));
            CHECK(c.algorithms(Op::Scatter, 3 * 250) == (direct ? List{SingleCopy, Staged} : List{Staged}));
            CHECK(c.algorithms(Op::Gather, 20000) == (List{Registered, Staged}));
            CHECK(c.algorithms(Op::Gather, 24 * KiB) == (direct ? List{SingleCopy, Staged} : List{Registered, Staged}));
        },
        60, tuned(false, values));
    ranks::run(3, [](Comm& c) { CHECK(c.algorithms(Op::AllReduce, 201) == List{Flat}); }, 60, tuned(true, values));
    either_side_of_each_threshold(3, tuned(false, values));
    const Tuning slow = tuning::parse_tuning({{"own_cores", "single_copy_gather", 24 * KiB}}, true);
    CHECK_EQ(slow.own_cores.single_copy_broadcast, 4 * MiB);
    CHECK_EQ(slow.own_cores.single_copy_gather, 24 * KiB);  // what a tuning file says goes first
    CHECK_EQ(slow.yielded_cores.single_copy_broadcast, Thresholds::kNever);
    CHECK_EQ(refusal_to_tune("many_cores", "flat_reduce"),
             "tuning: the cores 'many_cores' given, expected one of own_cores, shared_cores, yielded_cores");
    CHECK(refusal_to_tune("own_cores", "flat")
              .starts_with("tuning: the threshold 'flat' given, expected one of flat_all_reduce, flat_reduce, "),
          refusal_to_tune("own_cores", "flat"));
}

// Ranks with different settings do not join.
void different_settings() {
    for (const Settings& other : {settings(false, true, "gather", "staged"), settings(true, true),
                                  tuned(false, {{"own_cores", "flat_reduce", 1}})}) {
        auto segment = Segment::create(3);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 3; ++rank)
            threads.emplace_back([&, rank] {
                const Settings mine = rank == 1 ? other : settings(false, true);
                CHECK_EQ(ranks::thrown([&] { Comm::join(segment, rank, 30, Comm::RunsAs::Thread, mine); }),
                         "BadArgument");
            });
        for (auto& t : threads) t.join();
    }
}

}  // namespace

int main() {
    for (int n : ranks::worlds({2, 3, 4}))
        for (bool oversubscribed : {false, true}) {
            for (bool single_copy : {true, false})
                either_side_of_each_threshold(n, settings(oversubscribed, single_copy));
            for (const auto& [op, list] : tuning::algorithms())
                for (Algorithm algorithm : list) forced_algorithm(n, oversubscribed, op, algorithm);
        }
    forbidden_single_copy();
    unknown_names();
    different_settings();
    tuned_thresholds();
    return check::result();
}
