// Tests every collective with registered buffers on all ranks, on some and on none, with the same results, and registered
// buffers whose group fails or is closed.
#include <cstring>

#include "ranks.hpp"

using namespace rankwise;

namespace {

// Element i of rank r's data. Sums are inexact, so that another order of addition would give other bits.
float value(int r, uint64_t i) { return float((i * 7 + uint64_t(r) * 3) % 101) / 7 - 5; }

float total(int n, uint64_t i) {
    float sum = value(0, i);
    for (int r = 1; r < n; ++r) sum += value(r, i);
    return sum;
}

// `count` floats in registered or private memory.
struct Floats {
    std::shared_ptr<Registered> registered;
    std::vector<float> plain;
    float* data;
    Floats(Comm& c, bool in_segment, uint64_t count) {
        if (in_segment) registered = c.allocate(count * sizeof(float));
        else plain.resize(count);
        data = in_segment ? reinterpret_cast<float*>(registered->data()) : plain.data();
    }
    float& operator[](uint64_t i) { return data[i]; }
};

// Whether v[from + i] is expected(i), for all i < count.
template <class Expected> bool holds(Floats& v, uint64_t count, Expected&& expected, uint64_t from = 0) {
    for (uint64_t i = 0; i < count; ++i)
        if (v[from + i] != expected(i)) return false;
    return true;
}

void every_collective(Comm& c, uint64_t count, uint64_t which) {
    const int n = c.world_size(), me = c.rank();
    const bool here = which >> me & 1;
    const std::string what = std::to_string(count) + " floats, " + std::to_string(n) + " ranks, registered on " + std::to_string(which);
    Floats x(c, here, count), all(c, here, count * n), back(c, here, count * n);
    auto fill = [&](Floats& v, uint64_t length) {
        for (uint64_t i = 0; i < length; ++i) v[i] = value(me, i);
    };
    auto sums = [n](uint64_t i) { return total(n, i); };
    for (int again = 0; again < 2; ++again) {
        fill(x, count);
        c.all_reduce(x.data, count, DType::F32, ReduceOp::SUM);
        CHECK(holds(x, count, sums), "all_reduce of " << what);
        for (int root = 0; root < n; ++root) {
            auto roots = [root](uint64_t i) { return value(root, i); };
            fill(x, count);
            c.reduce(x.data, count, DType::F32, ReduceOp::SUM, root);
            CHECK(holds(x, count, [&](uint64_t i) { return me == root ? total(n, i) : value(me, i); }), "reduce of " << what);
            fill(x, count);
            c.broadcast(x.data, count, DType::F32, root);
            CHECK(holds(x, count, roots), "broadcast of " << what);
            fill(x, count);
            c.gather(x.data, me == root ? back.data : nullptr, count, DType::F32, root);
            for (int r = 0; me == root && r < n; ++r)
                CHECK(holds(back, count, [r](uint64_t i) { return value(r, i); }, count * r), "gather of " << what);
            fill(all, count * n);
            c.scatter(me == root ? all.data : nullptr, x.data, count, DType::F32, root);
            CHECK(holds(x, count, [&](uint64_t i) { return value(root, count * me + i); }), "scatter of " << what);
        }
        fill(x, count);
        c.all_gather(x.data, back.data, count, DType::F32);
        for (int r = 0; r < n; ++r) CHECK(holds(back, count, [r](uint64_t i) { return value(r, i); }, count * r), "all_gather of " << what);
        fill(all, count * n);
        c.reduce_scatter(all.data, x.data, count, DType::F32, ReduceOp::SUM);
        CHECK(holds(x, count, [&](uint64_t i) { return total(n, count * me + i); }), "reduce_scatter of " << what);
        c.all_to_all(all.data, back.data, count, DType::F32);
        for (int r = 0; r < n; ++r)
            CHECK(holds(back, count, [&](uint64_t i) { return value(r, count * me + i); }, count * r), "all_to_all of " << what);
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
    for (uint64_t i = 0; i < all; ++i) x[i] = value(me, i);
    c.reduce_scatter_v(x.data, part.data, counts, DType::F32, ReduceOp::SUM);
    CHECK(holds(part, counts[me], [&](uint64_t i) { return total(n, before + i); }), "reduce_scatter_v");
    c.scatter_v(x.data, part.data, counts, DType::F32, n - 1);
    CHECK(holds(part, counts[me], [&](uint64_t i) { return value(n - 1, before + i); }), "scatter_v");
    Floats back(c, true, all);
    c.all_gather_v(part.data, back.data, counts, DType::F32);
    CHECK(holds(back, all, [&](uint64_t i) { return value(n - 1, i); }), "all_gather_v");
    c.barrier();
}

// Blocks so large that they are copied in several pieces.
void large(Comm& c) {
    const uint64_t count = (26 << 20) / sizeof(float) + 5;
    const int n = c.world_size(), me = c.rank();
    Floats x(c, true, count), all(c, true, count * n);
    for (uint64_t i = 0; i < count; ++i) x[i] = value(me, i);
    c.all_gather(x.data, all.data, count, DType::F32);
    for (int r = 0; r < n; ++r) CHECK(holds(all, count, [r](uint64_t i) { return value(r, i); }, count * r), "all_gather of 26 MiB");
    c.broadcast(x.data, count, DType::F32, 1);
    CHECK(holds(x, count, [](uint64_t i) { return value(1, i); }), "broadcast of 26 MiB");
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
        const std::string error = ranks::thrown([&] { c.all_reduce(memory->data(), (1 << 18) - uint64_t(c.rank()), DType::F32, ReduceOp::SUM); });
        CHECK_EQ(error, "Mismatch");
        for (size_t i = 0; i < 1 << 20; ++i) CHECK_EQ(int(memory->data()[i]), 7);
    });
}

void lifetime() {
    std::shared_ptr<Registered> kept;
    const auto segment = ranks::run(2, [&](Comm& c) {
        const size_t before = c.segment()->allocated_blocks();
        c.barrier();
        {
            auto memory = c.allocate(100), none = c.allocate(0);
            CHECK(c.in_segment(memory->data(), 100), "registered memory lies in the segment");
            for (int i = 0; i < 100; ++i) CHECK_EQ(int(memory->data()[i]), 0);
            float elsewhere;
            CHECK(!c.in_segment(&elsewhere, sizeof elsewhere), "private memory does not lie in the segment");
            CHECK(!c.in_segment(memory->data(), ~size_t(0)), "a range larger than the segment does not lie in it");
            c.barrier();
            CHECK(c.segment()->allocated_blocks() == before + 4, "two blocks of each rank");
            c.barrier();
        }
        c.barrier();
        CHECK(c.segment()->allocated_blocks() == before + 4, "kept for the next buffers of that size");
        c.barrier();
        if (c.rank() == 0) kept = c.allocate(5000);
    });
    kept->data()[4999] = 1;  // usable although the group is closed
    CHECK_EQ(int(kept->data()[4999]), 1);
    const size_t with = segment->allocated_blocks();
    kept = nullptr;
    CHECK_EQ(segment->allocated_blocks(), with - 1);
}

// A freed buffer is the next one of its size, of this communicator and of those split from it.
void reused() {
    ranks::run(2, [](Comm& c) {
        auto part = c.split(0, 0);
        auto first = c.allocate(10'000), second = c.allocate(10'000);
        const void *one = first->data(), *two = second->data();
        std::memset(first->data(), 7, 10'000);
        first.reset();
        CHECK(c.allocate(20'000)->data() != one, "another size");
        first = part->allocate(9'000);
        CHECK(first->data() == one, "the same number of pages");
        CHECK_EQ(int(first->data()[8'999]), 0);
        std::memset(first->data(), 7, 9'000);
        second.reset();
        first.reset();
        first = c.allocate(12'288, false);
        CHECK(first->data() == one, "the one that was freed last");
        CHECK_EQ(int(first->data()[0]), 7);
        CHECK(c.allocate(12'288, false)->data() == two, "then the other");
        part->close(1);
        CHECK(c.allocate(12'288, false)->data() == two, "a closed part leaves the cache to the rest");
    });
}

// At most 64 buffers are kept, and none once the communicators are closed.
void kept_within_bounds() {
    ranks::run(1, [](Comm& c) {
        const auto segment = c.segment();
        const size_t before = segment->allocated_blocks();
        {
            std::vector<std::shared_ptr<Registered>> all;
            for (int i = 0; i < 100; ++i) all.push_back(c.allocate(100));
        }
        CHECK_EQ(segment->allocated_blocks(), before + 64);
        auto late = c.allocate(100);
        c.close(1);
        CHECK_EQ(segment->allocated_blocks(), before + 1);
        late.reset();
        CHECK_EQ(segment->allocated_blocks(), before);
    });
}

// What is kept is released where there is no room for another buffer.
void no_room() {
    ranks::run(1, [](Comm& c) {
        const auto segment = c.segment();
        const size_t before = segment->allocated_blocks();
        c.allocate(1 << 20).reset();
        CHECK_EQ(segment->allocated_blocks(), before + 1);
        CHECK_EQ(ranks::thrown([&] { c.allocate(size_t(1) << 60); }), "OutOfMemory");
        CHECK_EQ(segment->allocated_blocks(), before);
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
        ranks::run(3, [](Comm& c) { every_collective(c, 300000, 0b111); }, 60, settings);
        for (int n : ranks::worlds({2, 4})) ranks::run(n, by_counts, 60, settings);
        ranks::run(2, large, 60, settings);
    }
    for (int n : {2, 3}) one_rank_aborts(n);
    mismatched();
    lifetime();
    reused();
    kept_within_bounds();
    no_room();
    return check::result();
}
