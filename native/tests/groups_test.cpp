// Tests split, many groups, and two threads on one communicator.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "ranks.hpp"
#include "refuse_memory.hpp"

using namespace rankwise;

namespace {

void split_by_parity(Comm& c) {
    auto half = c.split(c.rank() % 2, -c.rank());  // in reverse order
    const int members = (c.world_size() + 1 - c.rank() % 2) / 2;
    CHECK_EQ(half->world_size(), members);
    CHECK_EQ(half->rank(), members - 1 - c.rank() / 2);
    int64_t sum = c.rank();
    half->all_reduce(&sum, 1, DType::I64, ReduceOp::SUM);
    int64_t expected = 0;
    for (int r = c.rank() % 2; r < c.world_size(); r += 2) expected += r;
    CHECK_EQ(sum, expected);
    auto alone = half->split(half->rank(), 0);
    alone->barrier();
    CHECK(!c.split(c.rank() == 0 ? 0 : -1, 0) == (c.rank() != 0));
}

void many_groups(Comm& c) {
    for (int k = 0; k < 200; ++k) {
        auto g = c.split(0, 0);
        int64_t one = 1;
        g->all_reduce(&one, 1, DType::I64, ReduceOp::SUM);
        CHECK_EQ(one, c.world_size());
        g->messages().send({&one, 1, DType::I64, g->rank(), 0});
        g->messages().recv({&one, 1, DType::I64, g->rank(), 0});
        g->close(1);
    }
}

// A new group in the memory of an earlier one of its size knows nothing of that one's steps, messages and failure.
void a_group_in_kept_memory_starts_afresh(Comm& c) {
    std::vector<int> everyone(size_t(c.world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    uint64_t first = 0;
    for (int k = 0; k < 4; ++k) {
        c.barrier();  // all have left the group before
        uint64_t subgroup = c.rank() == 0 ? c.make_subgroup(everyone) : 0;
        c.broadcast(&subgroup, 1, DType::U64, 0);
        const auto group = c.join_subgroup(subgroup);
        if (k == 0) first = subgroup;
        CHECK_EQ(subgroup, first);
        for (int step = 0; step <= k; ++step) ranks::meet(*group);
        int64_t x = k;
        if (k % 2) group->messages().send({&x, 1, DType::I64, (c.rank() + 1) % c.world_size(), 0});
        if (k == 2 && c.rank() == 0) group->abort("gave up");
        if (k == 2) CHECK_EQ(ranks::thrown([&] { group->barrier(); }), "PeerLost");
        group->close(1);
    }
}

// By the time a closed communicator is destroyed, or a thread that waited for one of its messages wakes up, others may
// use its group's memory.
void a_closed_group_leaves_its_memory_alone(bool waits) {
    const auto segment = Segment::create(1);
    const auto whole = Comm::join(segment, 0, 60, Comm::RunsAs::Thread, {});
    auto part = whole->split(0, 0);
    int64_t x = 0;
    const auto request = part->messages().recv({&x, 1, DType::I64, 0, 0});
    std::thread waiter;
    if (waits) {
        waiter = std::thread([&] { CHECK_EQ(ranks::thrown([&] { request->wait(30); }), std::string("Closed")); });
        std::this_thread::sleep_for(
            std::chrono::milliseconds(100));  // until it sleeps; a shorter time makes the test weaker
    }
    part->close(1);
    const size_t bytes = group_segment_bytes(1);
    const uint64_t offset = segment->heap().reserve_kept(bytes, bytes);
    if (waits) waiter.join();
    part.reset();
    const uint8_t* memory = segment->at<uint8_t>(offset);
    CHECK_EQ(std::count(memory, memory + bytes, 0), std::ptrdiff_t(bytes));
    segment->heap().release(offset);
    whole->close(1);
}

// The memory that the segment's file takes.
size_t committed(const Segment& segment) {
    struct stat info {};
    CHECK_EQ(fstat(segment.fd(), &info), 0);
    return size_t(info.st_blocks) * 512;
}

// A group takes little memory until an operation needs a slot.
void slots_are_committed_when_they_are_filled() {
    auto segment = Segment::create(2);
    std::thread other;
    const auto rank = [&](int r) {
        const auto whole = Comm::join(segment, r, 60, Comm::RunsAs::Thread, {});
        whole->barrier();
        const size_t before = committed(*segment);
        whole->barrier();
        const auto part = whole->split(0, 0);
        double x = 1;
        part->all_reduce(&x, 1, DType::F64, ReduceOp::SUM);
        whole->barrier();
        const size_t small = committed(*segment);
        CHECK(small - before <= round_up(32 * KiB, page_bytes()), small - before << " bytes");
        whole->barrier();
        std::vector<double> y(1000, 1);
        part->all_reduce(y.data(), y.size(), DType::F64, ReduceOp::SUM);
        whole->barrier();
        CHECK(committed(*segment) > small);
    };
    other = std::thread(rank, 1);
    rank(0);
    other.join();
}

// If there is no memory for a slot, its rank says so, and the others learn of it.
void no_memory_for_a_slot() {
    if (!can_refuse("no memory for a slot")) return;
    ranks::run(3, [](Comm& c) {
        std::vector<double> x(1000, 1);
        std::thread([&] {
            if (c.rank() == 1) refuse_memory();
            const auto reduces = [&] { c.all_reduce(x.data(), x.size(), DType::F64, ReduceOp::SUM); };
            CHECK_EQ(ranks::thrown(reduces), c.rank() == 1 ? "OutOfMemory" : "PeerLost");
            CHECK_EQ(ranks::thrown(reduces), "PeerLost");
        }).join();
    });
}

void two_threads(Comm& c) {
    auto work = [&c] {
        for (int k = 0; k < 200; ++k) {
            int64_t one = 1;
            c.all_reduce(&one, 1, DType::I64, ReduceOp::SUM);
            CHECK_EQ(one, c.world_size());
        }
    };
    std::thread other(work);
    work();
    other.join();
}

}  // namespace

int main() {
    a_closed_group_leaves_its_memory_alone(false);
    a_closed_group_leaves_its_memory_alone(true);
    slots_are_committed_when_they_are_filled();
    no_memory_for_a_slot();
    for (int n : ranks::worlds({1, 2, 3, 4})) {
        auto segment = ranks::run(n, [](Comm& c) {
            split_by_parity(c);
            many_groups(c);
            a_group_in_kept_memory_starts_afresh(c);
            two_threads(c);
            c.barrier();
        });
        CHECK_EQ(segment->heap().allocated_blocks(), size_t(1));  // the group of all ranks
    }
    return check::result();
}
