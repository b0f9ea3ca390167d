#include "memory/segment.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "failure/errors.hpp"
#include "memory/group_segment.hpp"
#include "trace/trace.hpp"

namespace rankwise {

namespace {

constexpr size_t kPage = 4096;
constexpr double kHeapTimeout = 30;  // seconds to wait for the lock of the heap

// The first page of each block of the heap; the block's memory follows it. Blocks are linked in address order.
struct Block {
    uint64_t bytes;  // of the whole block, including this page
    BlockKind kind;
    uint64_t next;   // offset of the next block, 0 at the end
};

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void fail_system(const char* what) {
    throw Error(std::string(what) + ": " + std::strerror(errno));
}

std::string signal_name(int number) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 32)
    if (const char* name = sigabbrev_np(number)) return std::string("SIG") + name;
#endif
    return "signal " + std::to_string(number);
}

size_t limit_of(decltype(RLIMIT_AS) resource) {
    rlimit limit;
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? size_t(limit.rlim_cur) : SIZE_MAX;
}

uint8_t* map(int fd, size_t bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED && errno == ENOMEM)
        throw OutOfMemory("the shared segment needs " + mib(bytes) + " of address space, " + mib(limit_of(RLIMIT_AS)) + " are allowed in all (ulimit -v)");
    if (base == MAP_FAILED) fail_system("mapping the shared segment");
    madvise(base, bytes, MADV_DONTDUMP);
    return static_cast<uint8_t*>(base);
}

}  // namespace

std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

size_t available_memory() {
    size_t available = SIZE_MAX;
    std::ifstream meminfo("/proc/meminfo");
    for (std::string key, unit; meminfo >> key;) {
        size_t kib = 0;
        meminfo >> kib;
        std::getline(meminfo, unit);
        if (key == "MemAvailable:") available = kib * 1024;
    }
    size_t limit = 0, used = 0;
    std::ifstream max("/sys/fs/cgroup/memory.max"), now("/sys/fs/cgroup/memory.current");
    if (max >> limit && now >> used) available = std::min(available, limit > used ? limit - used : 0);
    return available;
}

Segment::Segment(int fd, uint8_t* base, size_t bytes)
    : fd_(fd), base_(base), mapped_(bytes), header_(reinterpret_cast<SegmentHeader*>(base)) {}

Segment::~Segment() {
    if (before_unmap_) before_unmap_();
    munmap(base_, mapped_);
    close(fd_);
}

std::shared_ptr<Segment> Segment::create(int world_size) {
    if (world_size < 1 || world_size > kMaxRanks)
        throw BadArgument("world_size: " + std::to_string(world_size) + " given, expected 1 to " +
                          std::to_string(kMaxRanks));
    const size_t traces = round_up(sizeof(SegmentHeader) + world_size * sizeof(RankRecord), kPage);
    const size_t head = round_up(traces + world_size * kTraced * sizeof(TraceEntry), kPage);
    size_t pages = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
    size_t bytes = std::max<size_t>(2 * pages, size_t(4) << 30);
    bytes = std::min({bytes, limit_of(RLIMIT_AS) / 4, limit_of(RLIMIT_FSIZE)}) / kPage * kPage;
    if (const size_t least = head + group_segment_bytes(world_size) + 3 * kPage; bytes < least)
        throw OutOfMemory("the shared segment needs " + mib(least) + ", " + mib(bytes) + " are available under this process's limits (ulimit -v, -f)");

    int fd = memfd_create("rankwise", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) fail_system("memfd_create");
    if (ftruncate(fd, off_t(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        fail_system("sizing the shared segment");
    }
    if (fallocate(fd, 0, 0, off_t(head)) != 0) {
        close(fd);
        throw OutOfMemory("the shared segment needs " + mib(head) + ", " + mib(available_memory()) + " are available");
    }
    uint8_t* base;
    try {
        base = map(fd, bytes);
    } catch (...) {
        close(fd);
        throw;
    }
    std::shared_ptr<Segment> segment(new Segment(fd, base, bytes));
    SegmentHeader& h = segment->header();
    h.bytes = bytes;
    h.world_size = world_size;
    for (int r = 0; r < world_size; ++r) h.ranks[r].exit_status = kStatusUnknown;
    h.traces = traces;
    h.first_block = head;
    h.started = ClockReading::now();
    if (fallocate(fd, 0, off_t(head), kPage) != 0) throw OutOfMemory("no memory for the shared segment");
    *segment->at<Block>(head) = {bytes - head, BlockKind::Free, 0};
    std::vector<int> everyone(world_size);
    for (int r = 0; r < world_size; ++r) everyone[r] = r;
    h.world_group = create_group_segment(*segment, everyone);
    h.magic = kSegmentMagic;
    return segment;
}

std::shared_ptr<Segment> Segment::attach(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        throw BadArgument("fd: " + std::to_string(fd) + " given, expected an open descriptor of a rankwise segment");
    if (size_t(info.st_size) < sizeof(SegmentHeader))
        throw BadArgument("fd: " + std::to_string(fd) + " is not a rankwise segment");
    constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW;  // else a page could vanish while we use it
    if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & sealed) != sealed)
        throw BadArgument("fd: " + std::to_string(fd) + " is not a rankwise segment: its size is not sealed");
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) fail_system("duplicating the segment's descriptor");
    uint8_t* base;
    try {
        base = map(own, size_t(info.st_size));
    } catch (...) {
        close(own);
        throw;
    }
    std::shared_ptr<Segment> segment(new Segment(own, base, size_t(info.st_size)));
    if (segment->header().magic != kSegmentMagic || segment->header().bytes != size_t(info.st_size))
        throw BadArgument("fd: " + std::to_string(fd) + " is not a segment of this version of rankwise");
    return segment;
}

// The lock of the heap, held while the list of blocks is walked. If its owner has died, according to its record, the
// lock passes to the next rank; an owner that is stopped is waited for, at most `timeout` seconds.
struct Segment::HeapLock {
    SegmentHeader& h;
    bool held = false;
    HeapLock(SegmentHeader& header, double timeout) : h(header) {
        const uint32_t me = uint32_t(getpid());
        const auto start = Clock::now();
        for (uint32_t owner = 0; !h.heap_owner.compare_exchange_strong(owner, me, std::memory_order_acquire); owner = 0) {
            sched_yield();
            if (died(owner) && h.heap_owner.compare_exchange_strong(owner, me, std::memory_order_acquire)) break;
            if (Clock::now() - start > std::chrono::duration<double>(timeout)) return;
        }
        held = true;
    }
    ~HeapLock() {
        if (held) h.heap_owner.store(0, std::memory_order_release);
    }
    void check() const {
        if (!held) throw Error("process " + std::to_string(h.heap_owner.load()) + " holds the lock of the shared segment's memory and makes no progress");
    }
    bool died(uint32_t owner) const {
        for (int r = 0; r < h.world_size; ++r)
            if (h.ranks[r].exited.load() && uint32_t(h.ranks[r].pid.load()) == owner) return true;
        return false;
    }
};

uint64_t Segment::allocate(size_t bytes, BlockKind kind) {
    const size_t need = round_up(bytes, kPage) + kPage;
    if (size_t free = available_memory(); need > free)
        throw OutOfMemory("shared memory: " + mib(need) + " needed, " + mib(free) + " available");
    HeapLock lock(*header_, kHeapTimeout);
    lock.check();
    size_t largest = 0;  // free block
    for (uint64_t offset = header_->first_block; offset; offset = at<Block>(offset)->next) {
        Block& block = *at<Block>(offset);
        if (block.kind == BlockKind::Free) largest = std::max<size_t>(largest, block.bytes);
        if (block.kind != BlockKind::Free || block.bytes < need) continue;
        // Commit the pages now: if memory is short, that is an error here and not a SIGBUS later.
        const size_t remainder = block.bytes - need;
        if (fallocate(fd_, 0, off_t(offset), off_t(need + (remainder ? kPage : 0))) != 0)
            throw OutOfMemory("shared memory: " + mib(need) + " needed, " + mib(available_memory()) + " available");
        if (remainder) {
            *at<Block>(offset + need) = {remainder, BlockKind::Free, block.next};
            block.bytes = need;  // first: if we die here, the remainder is lost, but nothing is allocated twice
            std::atomic_signal_fence(std::memory_order_seq_cst);
            block.next = offset + need;
        }
        block.kind = kind;
        return offset + kPage;
    }
    throw OutOfMemory("shared memory: " + mib(need) + " needed, " + mib(largest) + " available in one piece of the segment's " + mib(header_->bytes));
}

void Segment::release(uint64_t offset) {
    HeapLock lock(*header_, kHeapTimeout);
    lock.check();
    at<Block>(offset - kPage)->kind = BlockKind::Free;
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(offset), off_t(at<Block>(offset - kPage)->bytes - kPage));
    for (uint64_t here = header_->first_block; here;) {  // merge adjacent free blocks
        Block& block = *at<Block>(here);
        Block* next = block.next ? at<Block>(block.next) : nullptr;
        if (next && block.kind == BlockKind::Free && next->kind == BlockKind::Free) {
            uint64_t merged = block.next;
            block.bytes += next->bytes;
            block.next = next->next;
            fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(merged), kPage);
        } else {
            here = block.next;
        }
    }
}

size_t Segment::allocated_blocks() const {
    HeapLock lock(*header_, kHeapTimeout);
    lock.check();
    size_t count = 0;
    for (uint64_t offset = header_->first_block; offset; offset = at<Block>(offset)->next)
        count += at<Block>(offset)->kind != BlockKind::Free;
    return count;
}

void Segment::mark_exited(int rank, int32_t status) {
    RankRecord& r = record(rank);
    if (status != kStatusUnknown) r.exit_status.store(status);
    // Every rank that notices the exit fails the groups, until one rank has failed them all: the first may have died
    // while it did so.
    if (r.groups_failed.load()) return;
    r.exited.store(1);
    header_->roster.fetch_add(1);
    futex_wake_all(header_->roster);
    // If the lock's owner is stopped, walk without the lock: the list is right except for the block that the owner is
    // about to change.
    HeapLock lock(*header_, 0.05);
    for (uint64_t offset = header_->first_block; offset; offset = at<Block>(offset)->next)
        if (at<Block>(offset)->kind == BlockKind::GroupSegment) group_lost_rank(*at<GroupSegment>(offset + kPage), rank);
    r.groups_failed.store(1);
}

namespace {
// How long an exit status is waited for: if it may be reported, and if it is sure to be.
constexpr std::chrono::milliseconds kLikelyStatus{400}, kSureStatus{5000};
}  // namespace

std::string Segment::how_it_ended(int rank) const {
    const RankRecord& r = record(rank);
    const auto since = Clock::now();
    const auto ends = [&r] { return r.exited.load() || r.ending.load(); };
    while (r.exit_status.load() == kStatusUnknown) {
        const bool sure = header_->statuses_expected.load() && ends();
        if (Clock::now() - since > (sure ? kSureStatus : kLikelyStatus)) break;
        usleep(1000);
        if (interrupted()) throw Interrupted();
    }
    const int32_t status = r.exit_status.load();
    if (status == kStatusUnknown) return ends() ? "ended" : "left the group";
    if (status < 0) return "was killed by " + signal_name(-status);
    return "exited with status " + std::to_string(status);
}

}  // namespace rankwise
