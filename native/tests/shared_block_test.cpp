// Tests that a block that several ranks hold is freed once, by the last one that lets go of it, whoever dies meanwhile.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>

#include "ranks.hpp"

using namespace rankwise;

namespace {

constexpr size_t kBytes = 100'000;

struct Job {
    const std::shared_ptr<Segment> segment;
    const std::shared_ptr<BufferCache> buffers = std::make_shared<BufferCache>(segment);
    explicit Job(int ranks) : segment(Segment::create(ranks)) {}
    std::unique_ptr<SharedBlock> block(int rank, const std::optional<SharedBlock::Ticket>& ticket = {}) const {
        return std::make_unique<SharedBlock>(buffers, Member{rank, 0}, kBytes, ticket);
    }
    bool can_take(int rank, const SharedBlock::Ticket& ticket) const {
        try {
            return block(rank, ticket) != nullptr;
        } catch (const Error& e) {
            CHECK_EQ(std::string(e.what()), "the shared memory was freed before this rank could take it");
            return false;
        }
    }
    // Without the group of all ranks. Each shared block has two: its header and its data.
    size_t blocks() const { return segment->heap().allocated_blocks() - 1; }
    void lose(int rank, int pid) const {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        segment->mark_ended(rank, -SIGKILL);
    }
    // A process of this rank that holds the block.
    int holder(int rank, const SharedBlock::Ticket& ticket) const {
        int held[2];
        CHECK(pipe(held) == 0);
        const int pid = fork();
        if (!pid) {
            alarm(60);
            segment->set_owner(rank, 0);
            const auto mine = block(rank, ticket);
            CHECK(write(held[1], "", 1) == 1);
            for (;;) pause();
        }
        char done;
        CHECK(read(held[0], &done, 1) == 1);
        for (int end : held) close(end);
        return pid;
    }
};

void the_last_one_frees_it() {
    const Job job(3);
    auto first = job.block(0), second = job.block(1, first->ticket());
    CHECK(first->data() == second->data() && first->offset() % page_bytes() == 0);
    CHECK(std::all_of(first->data(), first->data() + kBytes, [](uint8_t byte) { return byte == 0; }));
    const SharedBlock::Ticket ticket = first->ticket();
    first.reset();
    second->data()[kBytes - 1] = 7;
    auto third = job.block(2, ticket);  // as long as anybody holds it
    second.reset();
    CHECK_EQ(third->data()[kBytes - 1], 7);
    CHECK_EQ(job.blocks(), 2u);
    third.reset();
    CHECK_EQ(job.blocks(), 0u);
}

void what_was_freed_cannot_be_taken() {
    const Job job(2);
    const SharedBlock::Ticket ticket = job.block(0)->ticket();
    const auto later = job.block(0);  // in the same place
    CHECK_EQ(later->ticket().first, ticket.first);
    for (const auto& [offset, number] : {ticket, {ticket.first + 8, ticket.second}, {uint64_t(1) << 60, 1}})
        CHECK(!job.can_take(1, {offset, number}));
    CHECK_EQ(job.blocks(), 2u);
}

// Ranks take and let go of a block at the same moments, and allocate meanwhile.
void ranks_let_go_at_once(unsigned seed) {
    constexpr int kRanks = 3;
    const int rounds = ranks::shortened() ? 50 : 300;
    const Job job(kRanks);
    std::barrier meet(kRanks);
    SharedBlock::Ticket ticket;
    std::atomic<int> taken = 0;
    const auto rank = [&](int me) {
        std::mt19937 random(seed + unsigned(me));
        for (int round = 0; round < rounds; ++round) {
            const auto value = uint8_t(1 + round % 255);
            const bool all_take = round % 2;  // before anybody lets go
            std::unique_ptr<SharedBlock> mine;
            if (me == 0) {
                mine = job.block(me);
                std::memset(mine->data(), value, kBytes);
                ticket = mine->ticket();
            }
            meet.arrive_and_wait();
            usleep(random() % 3);
            try {
                if (me) mine = job.block(me, ticket);
            } catch (const Error&) {  // freed meanwhile
                CHECK(!all_take);
            }
            if (all_take) meet.arrive_and_wait();
            usleep(random() % 3);
            if (mine) {
                ++taken;
                CHECK(std::all_of(mine->data(), mine->data() + kBytes, [&](uint8_t byte) { return byte == value; }));
            }
            mine.reset();
            const uint64_t other = job.segment->heap().allocate(kBytes, BlockKind::Buffer);
            CHECK_EQ(*job.segment->at(other), 0);
            std::memset(job.segment->at(other), 255, kBytes);
            job.segment->heap().release(other);
            meet.arrive_and_wait();
            CHECK_EQ(job.blocks(), 0u);
            meet.arrive_and_wait();
        }
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) threads.emplace_back(rank, r);
    for (std::thread& thread : threads) thread.join();
    CHECK(taken >= rounds * (kRanks + 1) / 2, "the block was taken " << taken << " times");
}

void a_holder_dies_before_the_others_let_go() {
    const Job job(2);
    auto mine = job.block(0);
    job.lose(1, job.holder(1, mine->ticket()));
    free_memory_of_lost(*job.segment);
    CHECK_EQ(job.blocks(), 2u);
    mine.reset();
    CHECK_EQ(job.blocks(), 0u);
}

void the_last_holder_dies() {
    const Job job(2);
    auto mine = job.block(0);
    const int pid = job.holder(1, mine->ticket());
    mine.reset();
    CHECK_EQ(job.blocks(), 2u);
    job.lose(1, pid);
    free_memory_of_lost(*job.segment);
    CHECK_EQ(job.blocks(), 0u);
}

// As long as a rank of the group that has failed may write into memory of the dead rank.
void not_while_a_rank_is_writing_there() {
    const Job job(2);
    auto mine = job.block(0);
    GroupSegment& world = *find_group(*job.segment, job.segment->header().world_group);
    world.peers[0].writing = 1;
    job.lose(1, job.holder(1, mine->ticket()));
    mine.reset();
    CHECK_EQ(job.blocks(), 2u);
    world.peers[0].writing = 0;
    free_memory_of_lost(*job.segment);
    CHECK_EQ(job.blocks(), 0u);
}

// The thread of a rank has ended, but something in its process still has the memory.
void a_thread_that_ends_holds_it() {
    const Job job(2);
    auto mine = job.block(0), theirs = job.block(1, mine->ticket());
    job.segment->mark_ended(1, 1);
    mine.reset();
    free_memory_of_lost(*job.segment);
    CHECK_EQ(job.blocks(), 2u);
    theirs.reset();
    CHECK_EQ(job.blocks(), 0u);
}

void a_forked_child_holds_nothing() {
    const Job job(1);
    auto mine = job.block(0);
    if (const int pid = fork()) {
        waitpid(pid, nullptr, 0);
    } else {
        mine.reset();
        _exit(0);
    }
    CHECK_EQ(job.blocks(), 2u);
    mine.reset();
    CHECK_EQ(job.blocks(), 0u);
}

void no_room() {
    ranks::run(1, [](Comm& c) {
        const size_t before = c.segment()->heap().allocated_blocks();
        c.allocate(1 << 20).reset();  // kept, until there is no room
        for (const size_t bytes : {size_t(1) << 60, SIZE_MAX - 1, SIZE_MAX}) {
            CHECK_EQ(ranks::thrown([&] { c.shared_block(bytes); }), "OutOfMemory");
            CHECK_EQ(ranks::thrown([&] { c.allocate(bytes); }), "OutOfMemory");
        }
        CHECK_EQ(c.segment()->heap().allocated_blocks(), before);
        const auto small = c.shared_block(1);
        CHECK_EQ(ranks::thrown([&] { c.shared_block(SIZE_MAX, small->ticket()); }), "Error");
    });
}

// A block that a rank will fill takes its pages only then.
void it_is_filled_by_write() {
    ranks::run(1, [](Comm& c) {
        constexpr size_t kLarge = 8 << 20;
        const int fd = c.segment()->fd();
        const auto pages = [fd] {
            struct stat info;
            CHECK_EQ(fstat(fd, &info), 0);
            return size_t(info.st_blocks) * 512;
        };
        const size_t before = pages();
        const auto block = c.shared_block(kLarge, {}, true);
        CHECK(pages() < before + kLarge / 2);
        const std::vector<uint8_t> content(kLarge, 7);
        CHECK_EQ(pwrite(fd, content.data(), kLarge, off_t(block->offset())), ssize_t(kLarge));
        CHECK(pages() >= before + kLarge);
        CHECK(std::equal(content.begin(), content.end(), block->data()));
    });
}

// Collectives work on it in place, also after other ranks have let go of it, and it outlives the group.
void it_is_registered() {
    Settings settings;
    settings.forced = tuning::parse_forced({{"all_reduce", "registered"}, {"all_gather", "registered"}}, "shm");
    std::shared_ptr<SharedBlock> kept;
    const auto segment = ranks::run(
        3,
        [&](Comm& c) {
            constexpr uint64_t kCount = 30'000;
            const int n = c.world_size(), me = c.rank();
            uint64_t tickets[2] = {};
            std::shared_ptr<SharedBlock> x, all;
            for (auto* block : {&x, &all}) {
                if (me == 0) {
                    *block = c.shared_block(kCount * size_t(n) * sizeof(float));
                    std::tie(tickets[0], tickets[1]) = (*block)->ticket();
                }
                c.broadcast(tickets, 2, DType::I64, 0);
                if (me) *block = c.shared_block(kCount * size_t(n) * sizeof(float), {{tickets[0], tickets[1]}});
                c.barrier();
            }
            auto* const mine = reinterpret_cast<float*>(x->data()) + kCount * size_t(me);
            std::fill_n(mine, kCount, float(me + 1));
            c.all_reduce(mine, kCount, DType::F32, ReduceOp::SUM);
            CHECK(std::all_of(mine, mine + kCount, [](float v) { return v == 6; }));
            CHECK_EQ(ranks::thrown([&] {
                         std::vector<float> elsewhere(kCount);
                         c.split(0, 0)->all_reduce(elsewhere.data(), kCount, DType::F32, ReduceOp::SUM);
                     }),
                     "Unsupported");
            if (me == 2) kept = all;
        },
        60, settings);
    CHECK_EQ(kept->data()[0], 0);
    const size_t with = segment->heap().allocated_blocks();
    kept.reset();
    CHECK_EQ(segment->heap().allocated_blocks(), with - 2);
}

}  // namespace

int main() {
    a_holder_dies_before_the_others_let_go();  // before there are threads
    the_last_holder_dies();
    not_while_a_rank_is_writing_there();
    a_forked_child_holds_nothing();
    the_last_one_frees_it();
    what_was_freed_cannot_be_taken();
    a_thread_that_ends_holds_it();
    ranks_let_go_at_once(unsigned(time(nullptr)));
    no_room();
    it_is_filled_by_write();
    it_is_registered();
    return check::result();
}
