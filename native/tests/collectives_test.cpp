// Tests the result of every collective, over world sizes and over data sizes on either side of the limits of a slot
// header and of a slot, with many pieces and with an incomplete last piece.
#include <numeric>

#include "numbers.hpp"
#include "ranks.hpp"

using namespace rankwise;

namespace {

std::vector<float> filled(int r, uint64_t count) { return numbers::of(r).first(count); }

// Whether v holds a block from each rank, one after the other.
bool has_blocks(const std::vector<float>& v, const Counts& counts) {
    uint64_t at = 0;
    for (int r = 0; r < int(counts.size()); at += counts[r++])
        if (!numbers::of(r).equals(v.data() + at, counts[r])) return false;
    return true;
}

void every_collective(Comm& c, uint64_t count) {
    const int n = c.world_size(), me = c.rank();
    const auto blocks = count * uint64_t(n);
    const std::vector<float> mine = filled(me, count), many = filled(me, blocks);
    const numbers::Run total = numbers::sum_of(n);

    auto x = mine;
    c.all_reduce(x.data(), count, DType::F32, ReduceOp::SUM);
    CHECK(total.equals(x.data(), count), "all_reduce of " << count);

    for (int root = 0; root < n; root += std::max(1, n - 1)) {
        const numbers::Run roots = numbers::of(root);
        x = mine;
        c.broadcast(x.data(), count, DType::F32, root);
        CHECK(roots.equals(x.data(), count), "broadcast of " << count << " from " << root);

        x = mine;
        c.reduce(x.data(), count, DType::F32, ReduceOp::SUM, root);
        CHECK((me == root ? total : numbers::of(me)).equals(x.data(), count), "reduce of " << count << " to " << root);

        std::vector<float> all(me == root ? blocks : 0);
        c.gather(mine.data(), all.data(), count, DType::F32, root);
        CHECK(me != root || has_blocks(all, Counts(n, count)), "gather of " << count);

        x.assign(count, -1);
        c.scatter(me == root ? many.data() : nullptr, x.data(), count, DType::F32, root);
        CHECK(roots.equals(x.data(), count, count * uint64_t(me)), "scatter of " << count << " from " << root);
    }

    for (int root = 0; root < n; ++root) {
        const auto sent = filled(root, blocks);
        std::vector<float> part(count, -1);
        collectives::Division division{1, {}, {}, 0};
        if (me == root) division = {count * sizeof(float), {}, {7}, n};
        const auto part_buffer = [&](size_t bytes) {
            CHECK_EQ(bytes, count * 4);
            return reinterpret_cast<uint8_t*>(part.data());
        };
        c.scatter_sized(division, me == root ? sent.data() : nullptr, part_buffer, root);
        CHECK(division.words == Counts{7} && division.items == n);
        CHECK(numbers::of(root).equals(part.data(), count, count * uint64_t(me)),
              "even scatter of " << count << " from " << root);
    }

    std::vector<float> all(blocks);
    c.all_gather(mine.data(), all.data(), count, DType::F32);
    CHECK(has_blocks(all, Counts(n, count)), "all_gather of " << count);

    x.assign(count, -1);
    c.reduce_scatter(many.data(), x.data(), count, DType::F32, ReduceOp::SUM);
    CHECK(total.equals(x.data(), count, count * uint64_t(me)), "reduce_scatter of " << count);

    x.assign(count, -1);
    c.scan(mine.data(), x.data(), count, DType::F32, ReduceOp::SUM);
    CHECK(numbers::sum_of(me + 1).equals(x.data(), count), "scan of " << count);
    x = mine;
    c.exscan(x.data(), x.data(), count, DType::F32, ReduceOp::SUM);
    CHECK((me ? numbers::sum_of(me) : numbers::of(me)).equals(x.data(), count), "exscan of " << count << " in place");

    c.all_to_all(many.data(), all.data(), count, DType::F32);
    for (int r = 0; r < n; ++r)
        CHECK(numbers::of(r).equals(all.data() + count * uint64_t(r), count, count * uint64_t(me)),
              "all_to_all of " << count);
    c.barrier();
}

void uneven(Comm& c) {
    const int n = c.world_size(), me = c.rank();
    Counts counts(n), out(n), in(n);
    for (int r = 0; r < n; ++r) {
        counts[r] = uint64_t(r) * 70001 % 90000 * (r % 3 != 1);  // rank 1 has nothing
        out[r] = uint64_t(me + 2 * r) * 1000;
        in[r] = uint64_t(r + 2 * me) * 1000;
    }
    const uint64_t sum = std::accumulate(counts.begin(), counts.end(), uint64_t(0));
    const uint64_t before = std::accumulate(counts.begin(), counts.begin() + me, uint64_t(0));
    const auto mine = filled(me, counts[me]), many = filled(me, sum);

    std::vector<float> all(sum), part(counts[me]);
    c.all_gather_v(mine.data(), all.data(), counts, DType::F32);
    CHECK(has_blocks(all, counts), "all_gather_v");

    std::fill(all.begin(), all.end(), -1.f);
    c.gather_v(mine.data(), all.data(), counts, DType::F32, n - 1);
    CHECK(me != n - 1 || has_blocks(all, counts), "gather_v");

    c.scatter_v(many.data(), part.data(), counts, DType::F32, 0);
    CHECK(numbers::of(0).equals(part.data(), counts[me], before), "scatter_v");

    c.reduce_scatter_v(many.data(), part.data(), counts, DType::F32, ReduceOp::SUM);
    CHECK(numbers::sum_of(n).equals(part.data(), counts[me], before), "reduce_scatter_v");

    const auto outgoing = filled(me, std::accumulate(out.begin(), out.end(), uint64_t(0)));
    std::vector<float> incoming(std::accumulate(in.begin(), in.end(), uint64_t(0)));
    c.all_to_all_v(outgoing.data(), incoming.data(), out, in, DType::F32);
    uint64_t place = 0;
    for (int r = 0; r < n; ++r) {
        uint64_t start = 0;  // of this rank's block in r's buffer
        for (int j = 0; j < me; ++j) start += uint64_t(r + 2 * j) * 1000;
        CHECK(numbers::of(r).equals(incoming.data() + place, in[r], start), "all_to_all_v");
        place += in[r];
    }
}

// Large enough for single copy even when oversubscribed.
void large_reductions(Comm& c) {
    const uint64_t count = ranks::shortened() ? 300007 : 1100007;
    const auto mine = filled(c.rank(), count);
    auto x = mine;
    c.all_reduce(x.data(), count, DType::F32, ReduceOp::SUM);
    const numbers::Run total = numbers::sum_of(c.world_size());
    CHECK(total.equals(x.data(), count), "all_reduce of " << count);
    x = mine;
    c.reduce(x.data(), count, DType::F32, ReduceOp::SUM, 1);
    CHECK((c.rank() == 1 ? total : numbers::of(c.rank())).equals(x.data(), count), "reduce of " << count);
}

// Blocks larger than any cache, on two ranks.
void blocks_larger_than_the_cache(Comm& c) {
    const uint64_t count = (33 << 20) / 8 + 5;
    const auto numbered = [&](int r, uint64_t n) {
        std::vector<uint64_t> v(n);
        std::iota(v.begin(), v.end(), uint64_t(r) << 32);
        return v;
    };
    const int me = c.rank();
    for (int root = 0; root < 2; ++root) {
        const auto mine = numbered(me, count);
        std::vector<uint64_t> all(me == root ? 2 * count : 0), part(count);
        c.gather(mine.data(), all.data(), count, DType::U64, root);
        for (int r = 0; me == root && r < 2; ++r)
            CHECK(std::equal(all.begin() + long(count) * r, all.begin() + long(count) * (r + 1),
                             numbered(r, count).begin()),
                  "gather to " << root);
        const auto given = numbered(root, 2 * count);
        c.scatter(me == root ? given.data() : nullptr, part.data(), count, DType::U64, root);
        CHECK(std::equal(part.begin(), part.end(), given.begin() + long(count) * me), "scatter from " << root);
    }
}

// Rooted operations of all sizes in a row, some with late ranks: senders get far ahead of receivers, and must not
// overwrite a slot that a receiver still reads.
void short_pieces(Comm& c) {
    const int n = c.world_size(), me = c.rank();
    constexpr uint64_t sizes[] = {1, 30, 300, 2048, 2049, 4100, 9000, 16384, 32768, 40000};
    for (uint64_t k = 0; k < 600; ++k) {
        const int root = int(k / 97) % n;
        const uint64_t count = sizes[(k * k + k / 7) % std::size(sizes)] / (k % 3 ? uint64_t(n) : 1) + 1;
        if ((k + uint64_t(me) * 31) % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        auto x = filled(me + int(k), count);
        if (k % 4 == 0) {
            c.broadcast(x.data(), count, DType::F32, root);
            CHECK(numbers::of(root + int(k)).equals(x.data(), count), "broadcast " << k);
        } else if (k % 4 == 1) {
            c.reduce(x.data(), count, DType::F32, ReduceOp::SUM, root);
            CHECK(me != root || numbers::sum_of(n, int(k)).equals(x.data(), count), "reduce " << k);
        } else if (k % 4 == 2) {
            std::vector<float> all(me == root ? count * uint64_t(n) : 0);
            c.gather(x.data(), all.data(), count, DType::F32, root);
            for (int r = 0; me == root && r < n; ++r)
                CHECK(numbers::of(r + int(k)).equals(all.data() + count * uint64_t(r), count), "gather " << k);
        } else {
            const auto sent = filled(root + int(k), count * uint64_t(n));
            c.scatter(me == root ? sent.data() : nullptr, x.data(), count, DType::F32, root);
            CHECK(numbers::of(root + int(k)).equals(x.data(), count, count * uint64_t(me)), "scatter " << k);
        }
    }
}

// Rooted operations in a row: no rank may overwrite data that another still reads.
void in_a_row(Comm& c) {
    const int n = c.world_size();
    for (int k = 0; k < 300; ++k) {
        const int root = k % n;
        std::vector<float> x = filled(c.rank() + k, 5000);
        c.broadcast(x.data(), x.size(), DType::F32, root);
        CHECK(numbers::of(root + k).equals(x.data(), x.size()), "broadcast " << k);
        float small = float(c.rank() == root ? k : -1);
        c.broadcast(&small, 1, DType::F32, root);
        CHECK_EQ(small, float(k));
    }
}

}  // namespace

int main() {
    for (bool single_copy : {true, false})
        for (int n : ranks::worlds({1, 2, 3, 4, 7}))
            ranks::run(
                n,
                [n](Comm& c) {
                    for (uint64_t count : {0, 1, 23, 24, 25, 1023, 1024, 4097, 65536, 70001, 300007})
                        if (!ranks::shortened() || count <= 70001) every_collective(c, count);
                    uneven(c);
                    in_a_row(c);
                    short_pieces(c);
                    if (n == 2 && !ranks::shortened()) blocks_larger_than_the_cache(c);
                    if (n > 1) large_reductions(c);
                },
                60, Settings{{}, std::nullopt, single_copy});
    return check::result();
}
