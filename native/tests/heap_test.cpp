// Tests that the heap of the shared segment stays right, whoever dies or stops in it at whatever moment.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "ranks.hpp"
#include "refuse_memory.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

constexpr size_t kUnit = 64 << 10;

// A heap alone in its memory.
struct SmallHeap {
    static constexpr size_t kBytes = 4 << 20;
    const int fd = memfd_create("heap", MFD_CLOEXEC);
    uint8_t* base = map();
    HeapHeader header{};
    Heap heap{fd, base, header, nullptr};
    SmallHeap() { heap.create(0, kBytes); }
    ~SmallHeap() {
        munmap(base, kBytes);
        close(fd);
    }
    size_t room(Area area) const { return heap.bytes_of(area).bytes; }
    uint8_t* map() const {
        CHECK(ftruncate(fd, kBytes) == 0);
        return static_cast<uint8_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    }
};

bool all_are(const uint8_t* bytes, size_t count, uint8_t value) {
    return std::all_of(bytes, bytes + count, [&](uint8_t byte) { return byte == value; });
}

void blocks_take_the_first_room() {
    SmallHeap small;
    const Heap& heap = small.heap;
    const uint64_t a = heap.allocate(1, BlockKind::Buffer), b = heap.allocate(3 * kUnit, BlockKind::SharedData),
                   c = heap.allocate(kUnit + 1, BlockKind::Buffer);
    CHECK(a < b && b < c && b - a == kUnit && c - b == 3 * kUnit);
    std::memset(small.base + b, 7, 3 * kUnit);
    heap.release(b);
    CHECK_EQ(heap.allocated_blocks(), 2u);
    CHECK_EQ(heap.allocate(4 * kUnit, BlockKind::Buffer), c + 2 * kUnit);
    CHECK_EQ(heap.allocate(2 * kUnit, BlockKind::Buffer), b);
    CHECK(all_are(small.base + b, 3 * kUnit, 0), "memory that was freed is zeroed");
    CHECK_EQ(heap.allocated_blocks(), 4u);
}

void a_heap_has_an_end() {
    SmallHeap small;
    const Heap& heap = small.heap;
    const uint64_t all = heap.allocate(small.room(Area::Data), BlockKind::Buffer);
    CHECK_EQ(thrown([&] { heap.allocate(1, BlockKind::Buffer); }), "OutOfMemory");
    heap.release(all);
    std::vector<uint64_t> units;
    for (size_t all = 0; all < small.room(Area::Data); all += kUnit)
        units.push_back(heap.allocate(1, BlockKind::Buffer));
    for (const size_t huge : {kUnit << 32, SIZE_MAX})  // whose number of units does not fit in 32 bits
        CHECK_EQ(thrown([&] { heap.allocate(huge, BlockKind::Buffer); }), "OutOfMemory");
    CHECK_EQ(heap.allocated_blocks(), units.size());
    for (size_t i = 0; i < units.size(); i += 2) heap.release(units[i]);
    CHECK_EQ(thrown([&] { heap.allocate(2 * kUnit, BlockKind::Buffer); }), "OutOfMemory");
    heap.release(units[1]);
    CHECK_EQ(heap.allocate(3 * kUnit, BlockKind::Buffer), units[0]);
}

void a_visited_block_is_not_freed() {
    SmallHeap small;
    const Heap& heap = small.heap;
    const uint64_t block = heap.allocate(100, BlockKind::GroupSegment);
    heap.allocate(100, BlockKind::Text);
    const uint64_t unpublished = heap.reserve(Area::Control, 100, 100);
    small.base[block] = 1;
    int visits = 0;
    heap.visit(BlockKind::GroupSegment, [&](uint64_t offset) {
        CHECK_EQ(offset, block);
        heap.visit(BlockKind::GroupSegment, [&](uint64_t) { heap.release(block); });
        CHECK(heap.allocate(100, BlockKind::Text) != block);
        CHECK_EQ(small.base[block], 1);
        ++visits;
    });
    CHECK_EQ(visits, 1);
    CHECK_EQ(heap.allocate(100, BlockKind::Text), block);
    CHECK_EQ(small.base[block], 0);
    heap.release(unpublished);
}

// A kept block serves the next one of its size that is asked for as such, and any other if there is no more room.
void kept_memory_is_used_again() {
    SmallHeap small;
    const Heap& heap = small.heap;
    const auto make = [&](size_t bytes) {
        const uint64_t block = heap.reserve_kept(bytes, kUnit);
        CHECK(all_are(small.base + block, kUnit, 0), "memory that was kept is zeroed");
        heap.publish(block, BlockKind::GroupSegment);
        std::memset(small.base + block, 7, kUnit);
        return block;
    };
    const uint64_t block = make(2 * kUnit), end = heap.allocate(1, BlockKind::Text);
    heap.keep(block);
    CHECK_EQ(heap.allocated_blocks(), 1u);
    CHECK_EQ(heap.block_bytes(block, BlockKind::GroupSegment), 0u);
    CHECK(heap.allocate(1, BlockKind::Text) > end && make(1) > end && make(3 * kUnit) > end);
    CHECK_EQ(make(2 * kUnit), block);

    heap.visit(BlockKind::GroupSegment, [&](uint64_t visited) {
        if (visited != block) return;
        heap.keep(block);
        CHECK(make(2 * kUnit) != block);
        CHECK_EQ(small.base[block], 7);
    });

    CHECK_EQ(make(2 * kUnit), block);
    heap.keep(block);
    heap.allocate(small.room(Area::Control) - small.header.used[size_t(Area::Control)] * kUnit, BlockKind::Text);
    CHECK_EQ(heap.allocate(2 * kUnit, BlockKind::Text), block);
    CHECK(all_are(small.base + block, 2 * kUnit, 0), "memory that was kept is zeroed");
}

// So that a program whose groups were many does not hold their memory for ever.
void not_all_is_kept() {
    const auto segment = Segment::create(1);
    const Heap& heap = segment->heap();
    constexpr size_t kBytes = kKeptGroupMemory / 4;
    std::vector<uint64_t> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(heap.reserve(Area::Control, kBytes, kUnit));
    for (const uint64_t block : blocks) {
        heap.publish(block, BlockKind::GroupSegment);
        *segment->at(block) = 7;
    }
    for (const uint64_t block : blocks) heap.keep(block);
    CHECK_EQ(heap.reserve(Area::Control, 2 * kBytes, kUnit), blocks[4]);
    for (int i = 0; i < 4; ++i) CHECK_EQ(heap.reserve_kept(kBytes, kUnit), blocks[size_t(i)]);
}

// If the system neither takes the pages of a freed block back nor gives memory to zero them all, nobody gets the block.
void what_cannot_be_zeroed_is_not_free() {
    if (!can_refuse("a freed block without memory to zero it")) return;
    SmallHeap small;
    const Heap& heap = small.heap;
    const uint64_t block = heap.allocate(kUnit, BlockKind::Buffer);
    std::memset(small.base + block, 7, kUnit);
    std::thread([&] {
        refuse_memory();
        heap.release(block);
    }).join();
    CHECK_EQ(heap.block_bytes(block, BlockKind::Buffer), 0u);
    const uint64_t other = heap.allocate(kUnit, BlockKind::Buffer);
    CHECK(all_are(small.base + other, kUnit, 0), "new memory is not zeroed");
}

// What a stray write has put in place of an offset, and over the words of the heap.
void what_was_overwritten_is_no_block() {
    SmallHeap small;
    const Heap& heap = small.heap;
    const uint64_t block = heap.allocate(2 * kUnit, BlockKind::Text), next = heap.allocate(1, BlockKind::Channel);
    CHECK_EQ(heap.block_bytes(block, BlockKind::Text), 2 * kUnit);
    CHECK_EQ(heap.block_bytes(block, BlockKind::Channel), 0u);
    for (uint64_t offset :
         {uint64_t(0), uint64_t(7), block + 8, block + kUnit, next + kUnit, uint64_t(1) << 50, UINT64_MAX})
        CHECK_EQ(heap.block_bytes(offset, BlockKind::Text), 0u);
    for (uint32_t number : {0u, 1u << 31}) {
        std::memcpy(small.base + small.header.table, &number, sizeof number);  // how many units the first block has
        CHECK(heap.allocated_blocks() > 0);
        CHECK_EQ(heap.block_bytes(block, BlockKind::Text), kUnit);
    }
}

// Neither the rank that has made the segment nor one that has attached it can write beyond the memory of arrays.
void the_memory_of_arrays_lies_apart() {
    const auto made = Segment::create(1), attached = Segment::attach(made->fd());
    const int zeros = open("/dev/zero", O_RDONLY);
    for (const auto& segment : {made, attached}) {
        const auto [begin, bytes] = segment->heap().bytes_of(Area::Data);
        const auto can_write = [&](uint64_t at) { return read(zeros, segment->at(at), 1) == 1 || errno != EFAULT; };
        CHECK(can_write(begin) && can_write(begin + bytes - 1));
        CHECK(!can_write(begin - 1) && !can_write(begin + bytes));
    }
    close(zeros);
}

// Allocates and frees, or keeps, until `done`: what others allocate meanwhile is another block's, and what is visited
// is not freed.
void allocate_and_free(const Segment& segment, unsigned seed, const std::function<bool()>& done, bool visits = false) {
    std::mt19937 random(seed);
    struct Mine {
        uint64_t offset;
        size_t bytes;
        uint8_t value;
        BlockKind kind;
    };
    std::vector<Mine> blocks;
    const auto release = [&] {
        const Mine block = blocks.back();
        blocks.pop_back();
        CHECK(all_are(segment.at(block.offset), block.bytes, block.value), "another block was written over it");
        if (block.kind == BlockKind::Buffer || random() % 2) segment.heap().release(block.offset);
        else segment.heap().keep(block.offset);
    };
    while (!done()) {
        if (blocks.size() < 20 && random() % 2) {
            const size_t bytes = 1 + random() % (4 * kUnit);
            const BlockKind kind = random() % 2 ? BlockKind::Buffer : BlockKind::Channel;
            const uint64_t offset = kind == BlockKind::Channel && random() % 2
                                        ? segment.heap().reserve_kept(bytes, bytes)
                                        : segment.heap().reserve(area_of(kind), bytes, bytes);
            segment.heap().publish(offset, kind);
            blocks.push_back({offset, bytes, uint8_t(1 + random() % 255), kind});
            CHECK(all_are(segment.at(blocks.back().offset), bytes, 0), "new memory is not zeroed");
            std::memset(segment.at(blocks.back().offset), blocks.back().value, bytes);
        } else if (!blocks.empty()) {
            std::swap(blocks[random() % blocks.size()], blocks.back());
            release();
        }
        if (!visits) continue;
        for (const BlockKind kind : {BlockKind::Buffer, BlockKind::Channel})
            segment.heap().visit(kind, [&](uint64_t offset) {
                const std::atomic_ref byte(*segment.at(offset));
                const uint8_t before = byte.load();
                usleep(random() % 50);
                CHECK(!before || byte.load() == before, "a visited block was freed");
            });
    }
    while (!blocks.empty()) release();
}

void threads_share_it(unsigned seed) {
    const auto segment = Segment::create(2);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 3; ++i)
        threads.emplace_back(
            [&, i] { allocate_and_free(*segment, seed + i, [left = 300]() mutable { return left-- == 0; }); });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(segment->heap().allocated_blocks(), 1u);  // the group of all ranks
}

// Two processes allocate and free; one is stopped at a random moment, both are killed at random moments.
void stops_and_kills(unsigned seed) {
    std::mt19937 random(seed);
    const auto segment = Segment::create(2);
    int pids[2];
    for (unsigned child = 0; child < 2; ++child) {
        if ((pids[child] = fork())) continue;
        alarm(60);
        check::failures = 0;
        segment->set_owner(int(child), 0);
        allocate_and_free(*segment, seed + child, [] { return check::failures != 0; });
        _exit(1);
    }
    usleep(1000 + random() % 3000);
    kill(pids[0], SIGSTOP);
    allocate_and_free(*segment, seed + 2, [left = 50]() mutable { return left-- == 0; }, true);
    if (random() % 2) kill(pids[0], SIGCONT);
    usleep(random() % 1000);
    for (int pid : pids) kill(pid, SIGKILL);
    for (int pid : pids) {
        int status;
        waitpid(pid, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
              "seed " << seed << ": a process ended with status " << status);
    }
    for (int rank = 0; rank < 2; ++rank) segment->mark_ended(rank, -SIGKILL);
    const Heap& heap = segment->heap();
    heap.free_buffers_of_ended();
    heap.visit(BlockKind::Channel, [&](uint64_t offset) { heap.release(offset); });
    CHECK_EQ(heap.allocated_blocks(), 1u);  // the group of all ranks
    const uint64_t group = segment->header().world_group;
    const GroupSegment& world = *segment->at<GroupSegment>(group);
    const uint64_t free[] = {group + round_up(world.bytes, kUnit), heap.bytes_of(Area::Data).begin};  // of each area
    for (const Area area : kAreas) {
        const Heap::Range& all = heap.bytes_of(area);
        const uint64_t begin = free[size_t(area)],  // so large that what is kept has to be freed
            block = heap.reserve(area, all.begin + all.bytes - begin, 100 * kUnit);
        CHECK(all_are(segment->at(block), 100 * kUnit, 0), "seed " << seed << ": new memory is not zeroed");
        CHECK(block == begin, "seed " << seed << ": something was not freed");
    }
    CHECK_EQ(world.nranks, 2);
}

}  // namespace

int main() {
    const char* faults = std::getenv("RANKWISE_FAULTS");
    const unsigned tries = faults && std::strcmp(faults, "full") == 0 ? 300 : ranks::shortened() ? 5 : 30;
    const char* given = std::getenv("RANKWISE_FAULTS_SEED");
    const unsigned first = given ? unsigned(std::atoi(given)) : unsigned(time(nullptr));
    for (unsigned seed = first; seed < first + tries; ++seed) stops_and_kills(seed);  // before there are threads
    blocks_take_the_first_room();
    a_heap_has_an_end();
    a_visited_block_is_not_freed();
    kept_memory_is_used_again();
    not_all_is_kept();
    what_cannot_be_zeroed_is_not_free();
    what_was_overwritten_is_no_block();
    the_memory_of_arrays_lies_apart();
    threads_share_it(first);
    return check::result();
}
