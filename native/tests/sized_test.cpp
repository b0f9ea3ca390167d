// Tests the vector collectives whose counts only the ranks themselves know: in a step header, in a slot, and beyond.
#include <numeric>

#include "numbers.hpp"
#include "ranks.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

using Numbers = std::vector<float>;

uint64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), uint64_t(0)); }

// Memory for a result, of which is learnt how many rows come from each rank.
struct Result {
    explicit Result(uint64_t row) : row(row) {}
    const uint64_t row;
    Counts counts{};
    Numbers data{};
    int calls = 0;
    uint8_t* operator()(const Counts& learnt) {
        ++calls;
        counts = learnt;
        data.assign(sum(learnt) * row, -1);
        return reinterpret_cast<uint8_t*>(data.data());
    }
};

// Rank `from` sends counts_of(from)[to] rows to rank `to`: what one rank has, and what it receives from all.
struct Table {
    Table(int n, uint64_t most, int kind, uint64_t row) : n(n), row(row), rows(n, Counts(n)) {
        for (int from = 0; from < n; ++from)
            for (int to = 0; to < n; ++to) {
                if (kind == 0) rows[from][to] = most;                                                  // all equal
                if (kind == 1) rows[from][to] = most - std::min<uint64_t>(most, (from + 2 * to) % 3);  // nearly so
                if (kind == 2) rows[from][to] = from == n - 1 && to == 0 ? most : (from + to) % 2;     // one long block
                if (kind == 3) rows[from][to] = from == 0 ? most : 0;   // all from one rank
                if (kind == 4) rows[from][to] = from == to ? most : 0;  // nothing to another rank
            }
    }
    const int n;
    const uint64_t row;
    std::vector<Counts> rows;
    Counts to(int rank) const {
        Counts counts;
        for (int from = 0; from < n; ++from) counts.push_back(rows[from][rank]);
        return counts;
    }
    Numbers sent(int from) const { return numbers::of(from).first(sum(rows[from]) * row); }
    bool received(int rank, const Numbers& data) const {
        uint64_t at = 0;
        for (int from = 0; from < n; ++from) {
            const uint64_t begin = std::accumulate(rows[from].begin(), rows[from].begin() + rank, uint64_t(0)) * row;
            const uint64_t length = rows[from][rank] * row;
            if (!numbers::of(from).equals(data.data() + at, length, begin)) return false;
            at += length;
        }
        return at == data.size();
    }
};

bool has_blocks(const Numbers& data, const Counts& counts, uint64_t row) {
    uint64_t at = 0;
    for (int r = 0; r < int(counts.size()); at += counts[r++] * row)
        if (!numbers::of(r).equals(data.data() + at, counts[r] * row)) return false;
    return at == data.size();
}

// Each rank's block has as many rows as it sends to `root` in the table.
void gathers(Comm& c, const Table& table, int root, const Row& row) {
    const int me = c.rank();
    const Counts counts = table.to(root);
    const Numbers mine = numbers::of(me).first(counts[me] * table.row);
    std::vector<Numbers> parts(c.world_size());
    Counts learnt;
    const auto rooms = [&](const Counts& found) {
        learnt = found;
        std::vector<uint8_t*> places;
        for (int r = 0; r < c.world_size(); ++r) {
            parts[r].assign(found[r] * table.row, -1);
            places.push_back(reinterpret_cast<uint8_t*>(parts[r].data()));
        }
        return places;
    };
    c.gather_sized(mine.data(), counts[me], row, rooms, root);
    CHECK(learnt == (me == root ? counts : Counts()));
    for (int r = 0; me == root && r < c.world_size(); ++r)
        CHECK(parts[r] == numbers::of(r).first(counts[r] * table.row), "gather to " << root << " from " << r);

    Result all(table.row);
    c.all_gather_sized(mine.data(), counts[me], row, std::ref(all));
    CHECK_EQ(all.calls, 1);
    CHECK(all.counts == counts && has_blocks(all.data, counts, table.row), "all_gather");
}

void scatters(Comm& c, const Table& table, int root) {
    const bool from_me = c.rank() == root;
    collectives::Division division;
    if (from_me) division = {sizeof(float) * table.row, table.rows[root], {7, 8, 9}, {}};
    Numbers part;
    const auto part_buffer = [&](size_t bytes) {
        part.assign(bytes / sizeof(float), -1);
        return reinterpret_cast<uint8_t*>(part.data());
    };
    const Numbers all = from_me ? table.sent(root) : Numbers();
    c.scatter_sized(division, all.data(), part_buffer, root);
    CHECK(division.counts == table.rows[root] && division.words == Counts({7, 8, 9}));
    const Counts& counts = table.rows[root];
    const uint64_t begin = std::accumulate(counts.begin(), counts.begin() + c.rank(), uint64_t(0)) * table.row;
    CHECK(part.size() == counts[c.rank()] * table.row && numbers::of(root).equals(part.data(), part.size(), begin),
          "scatter from " << root);
}

void all_to_alls(Comm& c, const Table& table, const Row& row) {
    const int me = c.rank();
    const Numbers sent = table.sent(me);
    Result received(table.row);
    c.all_to_all_sized(sent.data(), table.rows[me], row, std::ref(received));
    CHECK_EQ(received.calls, 1);
    CHECK(received.counts == table.to(me) && table.received(me, received.data), "all_to_all");

    Counts out = table.rows[me], in = table.to(me);  // known to both, in elements
    for (Counts* counts : {&out, &in})
        for (uint64_t& count : *counts) count *= table.row;
    Numbers known(sum(in), -1);
    c.all_to_all_v(sent.data(), known.data(), out, in, DType::F32);
    CHECK(known == received.data, "all_to_all_v");
}

void all_sizes(Comm& c) {
    for (const uint64_t row : {1, 3})
        for (const uint64_t most : {0,   1,   2,   5,    11,   22,   23,   85,   86,    255,   256,
                                    257, 341, 342, 1023, 1025, 2049, 6143, 6145, 16385, 40000, 150000}) {
            if (ranks::shortened() && most > 10000) continue;
            for (int kind = 0; kind < 5; ++kind) {
                const Table table(c.world_size(), most / row, kind, row);
                const Row of{DType::F32, row};
                for (int root = 0; root < c.world_size(); ++root) {
                    gathers(c, table, root, of);
                    scatters(c, table, root);
                }
                all_to_alls(c, table, of);
            }
        }
}

// Rows of no elements, of which only the number travels.
void empty_rows(Comm& c) {
    const Row row{DType::F64, 0};
    const uint64_t mine = uint64_t(c.rank()) + 2;
    Counts expected(c.world_size());
    std::iota(expected.begin(), expected.end(), uint64_t(2));
    Result all(0);
    c.all_gather_sized(nullptr, mine, row, std::ref(all));
    CHECK(all.counts == expected);
    Result received(0);
    c.all_to_all_sized(nullptr, Counts(c.world_size(), mine), row, std::ref(received));
    CHECK(received.counts == expected);
}

// Calls in a row, some with late ranks: what is in a slot must not be overwritten while another rank reads it.
void in_a_row(Comm& c) {
    const int n = c.world_size();
    for (uint64_t k = 0; k < 600; ++k) {
        const uint64_t sizes[] = {1, 30, 250, 257, 900, 1500, 5000};
        const Table table(n, sizes[(k * k + k / 7) % std::size(sizes)], int(k % 3), 1);
        if ((k + uint64_t(c.rank()) * 31) % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        const Row row{DType::F32, 1};
        if (k % 3 == 0) gathers(c, table, int(k / 97) % n, row);
        else if (k % 3 == 1) scatters(c, table, int(k / 97) % n);
        else all_to_alls(c, table, row);
    }
}

// Started, and completed in any order.
void started(Comm& c) {
    const int n = c.world_size(), me = c.rank();
    for (const uint64_t most : {3, 200, 3000, 20000}) {
        const Table table(n, most, 1, 1);
        const Numbers sent = table.sent(me), mine = numbers::of(me).first(table.to(0)[me]);
        const Row row{DType::F32, 1};
        Result all(1), received(1);
        std::vector<float> x(4, 1);
        const auto gather =
            c.start([&](const CallOptions& o) { c.all_gather_sized(mine.data(), mine.size(), row, std::ref(all), o); });
        const auto sum =
            c.start([&](const CallOptions& o) { c.all_reduce(x.data(), x.size(), DType::F32, ReduceOp::SUM, o); });
        const auto exchange = c.start(
            [&](const CallOptions& o) { c.all_to_all_sized(sent.data(), table.rows[me], row, std::ref(received), o); });
        if (me % 2) gather->wait();
        exchange->wait();
        sum->wait();
        gather->wait();
        CHECK(has_blocks(all.data, table.to(0), 1) && table.received(me, received.data), "started, " << most);
        CHECK_EQ(x.back(), float(n));
    }
}

using Calls = std::function<void(Comm&)>;

// The ranks' calls differ, or a rank has no memory for the result: all of them learn it, at the latest in the next one.
void refused(Comm& c) {
    const int me = c.rank(), n = c.world_size();
    if (n == 1) return;
    const auto refuse = [](const auto&) -> uint8_t* { throw Mismatch("refused", {}, {}, {}, -1); };
    const auto refuse_all = [](const Counts&) -> std::vector<uint8_t*> { throw Mismatch("refused", {}, {}, {}, -1); };
    for (const uint64_t count : {2, 1500, 20000}) {
        const Numbers x(count * size_t(n), 1);
        const Row one{DType::F32, 1};
        const auto all_gather = [&](Comm& g, const Row& row) {
            Result result(2);
            g.all_gather_sized(x.data(), count, row, std::ref(result));
        };
        const std::vector<Calls> calls = {
            [&](Comm& g) { all_gather(g, {me == 0 ? DType::I32 : DType::F32, 1}); },
            [&](Comm& g) { all_gather(g, {DType::F32, me == 0 ? 2u : 1u}); },
            [&](Comm& g) {
                if (me > 0) return all_gather(g, one);
                g.gather_sized(x.data(), count, one, refuse_all, 0);
            },
            [&](Comm& g) { g.gather_sized(x.data(), count, one, refuse_all, 0); },
            [&](Comm& g) {
                Result result(1);
                if (me == 0) g.all_gather_sized(x.data(), count, one, refuse);
                else g.all_gather_sized(x.data(), count, one, std::ref(result));
            },
            [&](Comm& g) {
                Result result(1);
                if (me == 0) g.all_to_all_sized(x.data(), Counts(size_t(n), count), one, refuse);
                else g.all_to_all_sized(x.data(), Counts(size_t(n), count), one, std::ref(result));
            },
            [&](Comm& g) {
                collectives::Division division;
                if (me == 0) division = {sizeof(float), Counts(size_t(n), count), {}, {}};
                Numbers part(count);
                const auto own = [&](size_t) { return reinterpret_cast<uint8_t*>(part.data()); };
                if (me == n - 1) g.scatter_sized(division, x.data(), refuse, 0);
                else g.scatter_sized(division, x.data(), own, 0);
            },
        };
        for (const Calls& call : calls) {
            const auto g = c.split(0, 0);
            CHECK_EQ(thrown([&] {
                         call(*g);
                         g->barrier();
                     }),
                     "Mismatch");
        }
    }
}

}  // namespace

int main() {
    for (bool single_copy : {true, false})
        for (int n : ranks::worlds({1, 2, 3, 4, 7}))
            ranks::run(
                n,
                [](Comm& c) {
                    all_sizes(c);
                    empty_rows(c);
                    in_a_row(c);
                    started(c);
                    refused(c);
                },
                60, Settings{{}, std::nullopt, single_copy});
    return check::result();
}
