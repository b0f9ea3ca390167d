// Tests every collective with registered buffers on all ranks, on some and on none, with the same results, and
// registered buffers whose group fails or is closed.
#include <cstring>

#include "numbers.hpp"
#include "ranks.hpp"

using namespace rankwise;
using numbers::Run;

namespace {

// Element i of rank r's data. Sums are inexact, so that another order of addition would give other bits.
float value(int r, uint64_t i) { return float((i * 7 + uint64_t(r) * 3) % 101) / 7 - 5; }

float total(int n, uint64_t i) {
    float sum = value(0, i);
    for (int r = 1; r < n; ++r) sum += value(r, i);
    return sum;
}

Run of(int rank) {
    return Run([rank](uint64_t i) { return value(rank, i); });
}

Run sum_of(int n) {
    return Run([n](uint64_t i) { return total(n, i); });
}

// `count` floats in registered or private memory.
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
    void fill(const Run& run) { run.fill(data, count); }
    bool holds(const Run& run, uint64_t from = 0) const { return run.equals(data, count, from); }
    // Whether these are blocks of equal size, one from each rank; each begins with its rank's element `from`.
    bool holds_blocks(int n, uint64_t from = 0) const {
        const uint64_t size = count / uint64_t(n);
        for (int r = 0; r < n; ++r)
            if (!of(r).equals(data + size * uint64_t(r), size, from)) return false;
        return true;
    }
};

void every_collective(Comm& c, uint64_t count, uint64_t which) {
    const int n = c.world_size(), me = c.rank();
    const bool here = which >> me & 1;
    const std::string what =
        std::to_string(count) + " floats, " + std::to_string(n) + " ranks, registered on " + std::to_string(which);
    Floats x(c, here, count), all(c, here, count * n), back(c, here, count * n);
    const Run own = of(me), sums = sum_of(n);
    const uint64_t before = count * uint64_t(me);
    for (int again = 0; again < 2; ++again) {
        x.fill(own);
        c.all_reduce(x.data, count, DType::F32, ReduceOp::SUM);
        CHECK(x.holds(sums), "all_reduce of " << what);
        for (int root = 0; root < n; ++root) {
            const Run roots = of(root);
            x.fill(own);
            c.reduce(x.data, count, DType::F32, ReduceOp::SUM, root);
            CHECK(x.holds(me == root ? sums : own), "reduce of " << what);
            x.fill(own);
            c.broadcast(x.data, count, DType::F32, root);
            CHECK(x.holds(roots), "broadcast of " << what);
            x.fill(own);
            c.gather(x.data, me == root ? back.data : nullptr, count, DType::F32, root);
            CHECK(me != root || back.holds_blocks(n), "gather of " << what);
            all.fill(own);
            c.scatter(me == root ? all.data : nullptr, x.data, count, DType::F32, root);
            CHECK(x.holds(roots, before), "scatter of " << what);
        }
        x.fill(own);
        c.all_gather(x.data, back.data, count, DType::F32);
        CHECK(back.holds_blocks(n), "all_gather of " << what);
        all.fill(own);
        c.reduce_scatter(all.data, x.data, count, DType::F32, ReduceOp::SUM);
        CHECK(x.holds(sums, before), "reduce_scatter of " << what);
        c.all_to_all(all.data, back.data, count, DType::F32);
        CHECK(back.holds_blocks(n, before), "all_to_all of " << what);
    }
    c.barrier();
}

// Blocks of a different length on every rank, some of them empty.
void by_counts(Comm& c) {
    const int n = c.world_size(), me = c.rank();
    Counts counts(n);
    for (int r = 0; r < n; ++r) counts[r] = r == 1 ? 0 : 20000 + 37 * uint64_t(r);
    uint64_t all = 0, before = 0;
    for (int r = 0; r < n; ++r) {
        if (r < me) before += counts[r];
        all += counts[r];
    }
    Floats x(c, true, all), part(c, true, counts[me]);
    x.fill(of(me));
    c.reduce_scatter_v(x.data, part.data, counts, DType::F32, ReduceOp::SUM);
    CHECK(part.holds(sum_of(n), before), "reduce_scatter_v");
    c.scatter_v(x.data, part.data, counts, DType::F32, n - 1);
    CHECK(part.holds(of(n - 1), before), "scatter_v");
    Floats back(c, true, all);
    c.all_gather_v(part.data, back.data, counts, DType::F32);
    CHECK(back.holds(of(n - 1)), "all_gather_v");
    c.barrier();
}

// Blocks so large that they are copied in several pieces.
void large(Comm& c) {
    const uint64_t count = (26 << 20) / sizeof(float) + 5;
    const int n = c.world_size(), me = c.rank();
    Floats x(c, true, count), all(c, true, count * n);
    x.fill(of(me));
    c.all_gather(x.data, all.data, count, DType::F32);
    CHECK(all.holds_blocks(n), "all_gather of 26 MiB");
    c.broadcast(x.data, count, DType::F32, 1);
    CHECK(x.holds(of(1)), "broadcast of 26 MiB");
    c.barrier();
}

// A rank aborts during an operation: the others throw, and no rank writes into memory that has been freed.
void one_rank_aborts(int n) {
    ranks::run(n, [](Comm& c) {
        auto memory = c.allocate(1 << 20);
        c.barrier();
        if (c.rank() == 0) return c.abort("aborted");
        const std::string error = ranks::thrown([&] {
            for (;;) c.all_reduce(memory->data(), (1 << 20) / 4, DType::F32, ReduceOp::SUM);
        });
        CHECK_EQ(error, "PeerLost");
    });
}

// Different counts: all ranks throw before a byte of the memory has changed.
void mismatched() {
    ranks::run(2, [](Comm& c) {
        auto memory = c.allocate(1 << 20);
        std::memset(memory->data(), 7, 1 << 20);
        const std::string error = ranks::thrown(
            [&] { c.all_reduce(memory->data(), (1 << 18) - uint64_t(c.rank()), DType::F32, ReduceOp::SUM); });
        CHECK_EQ(error, "Mismatch");
        for (size_t i = 0; i < 1 << 20; ++i) CHECK_EQ(int(memory->data()[i]), 7);
    });
}

void lifetime() {
    std::shared_ptr<Registered> kept;
    const auto segment = ranks::run_in_threads(2, [&](Comm& c) {
        const size_t before = c.segment()->heap().allocated_blocks();
        c.barrier();
        {
            auto memory = c.allocate(100), none = c.allocate(0);
            CHECK(c.in_segment(memory->data(), 100), "registered memory lies in the segment");
            for (int i = 0; i < 100; ++i) CHECK_EQ(int(memory->data()[i]), 0);
            float elsewhere;
            CHECK(!c.in_segment(&elsewhere, sizeof elsewhere), "private memory does not lie in the segment");
            CHECK(!c.in_segment(memory->data(), ~size_t(0)), "a range larger than the segment does not lie in it");
            c.barrier();
            CHECK(c.segment()->heap().allocated_blocks() == before + 4, "two blocks of each rank");
            c.barrier();
        }
        c.barrier();
        CHECK(c.segment()->heap().allocated_blocks() == before + 4, "kept for the next buffers of that size");
        c.barrier();
        if (c.rank() == 0) kept = c.allocate(5000);
    });
    kept->data()[4999] = 1;  // usable although the group is closed
    CHECK_EQ(int(kept->data()[4999]), 1);
    const size_t with = segment->heap().allocated_blocks();
    kept = nullptr;
    CHECK_EQ(segment->heap().allocated_blocks(), with - 1);
}

// A freed buffer is the next one of its size, of this communicator and of those split from it.
void reused() {
    const size_t whole = 3 * page_bytes(), some = whole - 2000, fewer = whole - 3000;
    ranks::run(2, [=](Comm& c) {
        auto part = c.split(0, 0);
        auto first = c.allocate(some), second = c.allocate(some);
        const void *one = first->data(), *two = second->data();
        std::memset(first->data(), 7, some);
        first.reset();
        CHECK(c.allocate(2 * whole)->data() != one, "another size");
        first = part->allocate(fewer);
        CHECK(first->data() == one, "the same number of pages");
        CHECK_EQ(int(first->data()[fewer - 1]), 0);
        std::memset(first->data(), 7, fewer);
        second.reset();
        first.reset();
        first = c.allocate(whole, Contents::Undefined);
        CHECK(first->data() == one, "the one that was freed last");
        CHECK_EQ(int(first->data()[0]), 7);
        CHECK(c.allocate(whole, Contents::Undefined)->data() == two, "then the other");
        part->close(1);
        CHECK(c.allocate(whole, Contents::Undefined)->data() == two, "a closed part leaves the cache to the rest");
    });
}

// At most 64 buffers are kept, and none once the communicators are closed.
void kept_within_bounds() {
    ranks::run(1, [](Comm& c) {
        const auto segment = c.segment();
        const size_t before = segment->heap().allocated_blocks();
        {
            std::vector<std::shared_ptr<Registered>> all;
            for (int i = 0; i < 100; ++i) all.push_back(c.allocate(100));
        }
        CHECK_EQ(segment->heap().allocated_blocks(), before + 64);
        auto late = c.allocate(100);
        c.close(1);
        CHECK_EQ(segment->heap().allocated_blocks(), before + 1);
        late.reset();
        CHECK_EQ(segment->heap().allocated_blocks(), before);
    });
}

// What is kept is released where there is no room for another buffer.
void no_room() {
    ranks::run(1, [](Comm& c) {
        const auto segment = c.segment();
        const size_t before = segment->heap().allocated_blocks();
        c.allocate(1 << 20).reset();
        CHECK_EQ(segment->heap().allocated_blocks(), before + 1);
        CHECK_EQ(ranks::thrown([&] { c.allocate(size_t(1) << 60); }), "OutOfMemory");
        CHECK_EQ(segment->heap().allocated_blocks(), before);
    });
}

}  // namespace

int main() {
    for (bool single_copy : {true, false}) {
        const Settings settings{{}, std::nullopt, single_copy};
        for (int n : ranks::worlds({2, 3, 5}))
            for (uint64_t count : {1, 2047, 2048, 6144, 40001})
                for (uint64_t which : {0b11111, 0b10110, 0b00001, 0})
                    ranks::run(n, [&](Comm& c) { every_collective(c, count, which); }, 60, settings);
        if (!ranks::shortened()) ranks::run(3, [](Comm& c) { every_collective(c, 300000, 0b111); }, 60, settings);
        for (int n : ranks::worlds({2, 4})) ranks::run(n, by_counts, 60, settings);
        if (!ranks::shortened()) ranks::run(2, large, 60, settings);
    }
    for (int n : {2, 3}) one_rank_aborts(n);
    mismatched();
    lifetime();
    reused();
    kept_within_bounds();
    no_room();
    return check::result();
}
