// The by_node algorithms, on ranks whose NUMA nodes are pretended: even, uneven, interleaved, and with one rank each.
// Every result has the bits of one reduction in the order of the nodes, which is that of the ranks where each node's
// ranks follow each other.
#include <random>

#include "ranks.hpp"

using namespace rankwise;

namespace {

Settings settings(std::vector<int> nodes, const char* operation = nullptr) {
    Settings s;
    s.oversubscribed = true;
    s.numa_nodes = std::move(nodes);
    if (operation) s.forced = tuning::parse_forced({{operation, "by_node"}}, s.backend);
    return s;
}

std::string text_of(const std::vector<int>& nodes) {
    std::string text = "nodes";
    for (int node : nodes) text.append(" ").append(std::to_string(node));
    return text;
}

// Elements of rank r; floats are not whole numbers, so that the order of a sum shows in its bits.
std::vector<uint8_t> data_of(int r, DType dtype, size_t count) {
    std::mt19937 random(uint32_t(r) + 1);
    std::vector<uint8_t> data(count * itemsize(dtype));
    std::vector<float> floats(count);
    std::uniform_real_distribution<float> real(-1, 1);
    for (float& x : floats) x = real(random);
    if (const ConvertKernel narrow = narrow_kernel(dtype)) narrow(data.data(), floats.data(), count);
    else if (dtype == DType::F32) std::memcpy(data.data(), floats.data(), data.size());
    else if (dtype == DType::F64)
        for (size_t i = 0; i < count; ++i) reinterpret_cast<double*>(data.data())[i] = double(floats[i]) / 3;
    else
        for (uint8_t& byte : data) byte = uint8_t(random());
    return data;
}

std::vector<uint8_t> reduced(const std::vector<int>& nodes, DType dtype, ReduceOp op, size_t count) {
    std::vector<std::vector<uint8_t>> all;
    for (const auto& members : NumaNodes(nodes).members)
        for (int r : members) all.push_back(data_of(r, dtype, count));
    std::vector<const void*> sources;
    for (const auto& one : all) sources.push_back(one.data());
    std::vector<uint8_t> result(count * itemsize(dtype));
    reduce_kernel(dtype, op)(result.data(), sources.data(), int(sources.size()), count, int(sources.size()));
    return result;
}

struct Kind {
    DType dtype;
    ReduceOp op;
};
constexpr Kind kKinds[] = {{DType::F32, ReduceOp::SUM},   {DType::F32, ReduceOp::MEAN},    {DType::F16, ReduceOp::SUM},
                           {DType::BF16, ReduceOp::MEAN}, {DType::FP8E4M3, ReduceOp::SUM}, {DType::F64, ReduceOp::PROD},
                           {DType::I32, ReduceOp::SUM},   {DType::U8, ReduceOp::BXOR}};

std::vector<size_t> counts() {
    std::vector<size_t> all = {0, 1, 3, 1000, 70001};
    if (!ranks::shortened()) all.push_back(600011);
    return all;
}

void reductions(const std::vector<int>& nodes) {
    const int n = int(nodes.size());
    struct Case {
        Kind kind;
        size_t count;
        std::vector<uint8_t> right;
        std::string what;
    };
    std::vector<Case> cases;
    for (const auto& [dtype, op] : kKinds)
        for (size_t count : counts())
            if (count <= 70001 || dtype == DType::F32 || dtype == DType::F16)
                cases.push_back({{dtype, op},
                                 count,
                                 reduced(nodes, dtype, op, count),
                                 text_of(nodes) + ", dtype " + std::to_string(int(dtype)) + ", op " +
                                     std::to_string(int(op)) + ", " + std::to_string(count) + " elements"});
    ranks::run(
        n,
        [&](Comm& c) {
            for (const auto& [kind, count, right, what] : cases) {
                auto x = data_of(c.rank(), kind.dtype, count);
                c.all_reduce(x.data(), count, kind.dtype, kind.op);
                CHECK(x == right, "all_reduce: " << what);
            }
        },
        60, settings(nodes, "all_reduce"));
    ranks::run(
        n,
        [&](Comm& c) {
            for (const auto& [kind, count, right, what] : cases)
                for (int root : {0, n - 1}) {
                    const auto own = data_of(c.rank(), kind.dtype, count);
                    auto x = own;
                    c.reduce(x.data(), count, kind.dtype, kind.op, root);
                    CHECK(x == (c.rank() == root ? right : own), "reduce to " << root << ": " << what);
                }
        },
        60, settings(nodes, "reduce"));
}

void broadcasts(const std::vector<int>& nodes) {
    const int n = int(nodes.size());
    ranks::run(
        n,
        [&](Comm& c) {
            for (size_t count : counts())
                for (int root = 0; root < n; ++root) {
                    auto x = data_of(c.rank(), DType::F32, count);
                    c.broadcast(x.data(), count, DType::F32, root);
                    CHECK(x == data_of(root, DType::F32, count),
                          "broadcast from " << root << ": " << text_of(nodes) << ", " << count << " elements");
                }
        },
        60, settings(nodes, "broadcast"));
}

// Ranks whose calls differ all learn of it, and no data has changed.
void mismatched_calls() {
    for (const char* operation : {"all_reduce", "broadcast"})
        ranks::run(
            4,
            [&](Comm& c) {
                std::vector<float> x(c.rank() == 3 ? 300001 : 300000, float(c.rank()));
                const auto before = x;
                const auto call = [&] {
                    if (operation[0] == 'a') c.all_reduce(x.data(), x.size(), DType::F32, ReduceOp::SUM);
                    else c.broadcast(x.data(), x.size(), DType::F32, 0);
                    c.barrier();
                };
                CHECK_EQ(ranks::thrown(call), "Mismatch");
                CHECK(x == before, operation << " of rank " << c.rank());
            },
            60, settings({0, 0, 1, 1}, operation));
}

// With thresholds, by_node runs from a size on, where it moves less data between nodes and keeps the order of the
// ranks.
void choice() {
    const auto tuned = [](std::vector<int> nodes) {
        Settings s = settings(std::move(nodes));
        for (Thresholds* t : {&s.tuning.own_cores, &s.tuning.shared_cores, &s.tuning.yielded_cores})
            t->by_node_all_reduce = t->by_node_reduce = t->by_node_broadcast = 1 * MiB;
        return s;
    };
    using List = std::vector<Algorithm>;
    const List by_node{Algorithm::ByNode};
    const auto uses = [&](Comm& c) {
        return c.algorithms(Op::AllReduce, 1 * MiB) == by_node && c.algorithms(Op::Reduce, 1 * MiB) == by_node &&
               c.algorithms(Op::Broadcast, 1 * MiB) == by_node;
    };
    const auto avoids = [&](Comm& c) {
        for (Op op : {Op::AllReduce, Op::Reduce, Op::Broadcast})
            for (Algorithm algorithm : c.algorithms(op, 1 * MiB))
                if (algorithm == Algorithm::ByNode) return false;
        return true;
    };
    ranks::run(
        4,
        [&](Comm& c) {
            CHECK(uses(c));
            CHECK(c.algorithms(Op::AllReduce, 1 * MiB - 4) != by_node);
            for (size_t count : {MiB / 4 - 1, MiB / 4}) {
                std::vector<float> x(count, float(c.rank() + 1));
                c.all_reduce(x.data(), count, DType::F32, ReduceOp::SUM);
                CHECK(x == std::vector<float>(count, 10));
            }
            const auto node = c.split(c.rank() / 2, 0), across = c.split(c.rank() % 2, 0),
                       three = c.split(c.rank() < 3 ? 0 : -1, 0), reversed = c.split(0, -c.rank());
            CHECK(avoids(*node));    // it has one node
            CHECK(avoids(*across));  // one rank on each node
            CHECK(!three ||
                  (uses(*three) && three->conditions().nodes.members == std::vector<std::vector<int>>{{0, 1}, {2}}));
            CHECK(uses(*reversed));
            for (const auto& group : {node, across, three, reversed})
                if (group) group->close(5);
        },
        60, tuned({0, 0, 1, 1}));
    for (const std::vector<int>& nodes : std::vector<std::vector<int>>{{0, 1, 0, 1}, {5, 5, 5, 5}, {0, 1, 2, 3}, {}})
        ranks::run(4, [&](Comm& c) { CHECK(avoids(c), text_of(nodes)); }, 60, tuned(nodes));
    ranks::run(4, [&](Comm& c) { CHECK(avoids(c)); }, 60, settings({0, 0, 1, 1}));  // nothing is tuned
}

void unknown_nodes() {
    Settings unknown = settings({}, "all_reduce");
    unknown.numa_node = -1;
    ranks::run(
        2,
        [](Comm& c) {
            float x = 1;
            CHECK(!c.conditions().nodes.known());
            CHECK_EQ(ranks::thrown([&] { c.all_reduce(&x, 1, DType::F32, ReduceOp::SUM); }), "Unsupported");
        },
        60, unknown);
}

// Every rank learns that the ranks' settings differ, or name too few nodes.
void refused_settings() {
    for (const std::vector<int>& other : std::vector<std::vector<int>>{{0, 1, 1}, {}, {0, 0}}) {
        auto segment = Segment::create(3);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 3; ++rank)
            threads.emplace_back([&, rank] {
                CHECK_EQ(ranks::thrown([&] {
                             Comm::join(segment, rank, 30, false,
                                        settings(rank == 1 || other.size() == 2 ? other : std::vector<int>{0, 0, 1}));
                         }),
                         "BadArgument");
            });
        for (auto& t : threads) t.join();
    }
}

}  // namespace

int main() {
    const std::vector<std::vector<int>> worlds = {
        {0, 0},       {0, 1},       {1, 1, 0},       {0, 1, 0},          {0, 0, 1, 1},      {0, 1, 0, 1},
        {0, 1, 1, 1}, {0, 1, 2, 3}, {0, 0, 0, 1, 1}, {3, 3, 1, 1, 0, 0}, {0, 1, 1, 0, 2, 0}};
    for (const auto& nodes : worlds) {
        if (ranks::shortened() && nodes.size() > 3) continue;
        reductions(nodes);
        broadcasts(nodes);
    }
    mismatched_calls();
    choice();
    unknown_nodes();
    refused_settings();
    return check::result();
}
