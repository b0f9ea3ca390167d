#include "memory/segment.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "base/raise_to.hpp"
#include "base/version.hpp"
#include "memory/agreements.hpp"
#include "memory/group_segment.hpp"
#include "memory/trace_entry.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

namespace {

[[noreturn]] void fail_system(const char* what) { throw Error(std::string(what) + ": " + std::strerror(errno)); }

std::string signal_name(int number) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 32)
    if (const char* name = sigabbrev_np(number)) return std::string("SIG") + name;
#endif
    return "signal " + std::to_string(number);
}

constexpr size_t kMostAddresses = size_t(1) << 46;  // half of a process's on x86-64

size_t limit_of(decltype(RLIMIT_AS) resource) {
    rlimit limit;
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? size_t(limit.rlim_cur) : SIZE_MAX;
}

uint8_t* map(int fd, size_t bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED && errno == ENOMEM)
        throw OutOfMemory("the shared segment needs " + mib(bytes) + " of address space, " + mib(limit_of(RLIMIT_AS)) +
                          " are allowed in all (ulimit -v)");
    if (base == MAP_FAILED) fail_system("mapping the shared segment");
    madvise(base, bytes, MADV_DONTDUMP);
    return static_cast<uint8_t*>(base);
}

// A text of the segment as it may be shown: without what a terminal would obey, whoever has written it.
template <size_t size> std::string printable(const char (&text)[size]) {
    std::string shown(text, strnlen(text, size));
    std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return shown;
}

}  // namespace

SegmentLayout::SegmentLayout(int world_size)
    : traces(round_up(sizeof(SegmentHeader) + size_t(world_size) * sizeof(RankRecord), page_bytes())),
      restores(round_up(traces + size_t(world_size) * kTraced * sizeof(TraceEntry), kCacheLine)),
      heap(round_up(restores + agreements_bytes(size_t(world_size)), page_bytes())) {}

Segment::Segment(Descriptor fd, size_t bytes)
    : fd_(std::move(fd)), mapped_(bytes), base_(map(fd_.get(), bytes)),
      header_(reinterpret_cast<SegmentHeader*>(base_)), world_size_(header_->world_size),
      heap_(fd_.get(), base_, header_->heap, header_->ranks) {}

Segment::~Segment() {
    watcher.reset();
    progress_threads.clear();
    for (const auto& [rank, pidfd] : pidfds_) close(pidfd);
    munmap(base_, mapped_);
}

std::shared_ptr<Segment> Segment::create(int world_size, int node, int nodes) {
    if (!valid_world_size(world_size))
        throw BadArgument("world_size: " + std::to_string(world_size) + " given, expected 1 to " +
                          std::to_string(kMaxRanks));
    if (node < 0 || node >= nodes)
        throw BadArgument("node: " + std::to_string(node) + " given, expected 0 to " + std::to_string(nodes - 1) +
                          ", because there are " + std::to_string(nodes));
    const size_t head = SegmentLayout(world_size).heap;
    const size_t memory = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
    size_t bytes = std::max<size_t>(4 * memory, size_t(8) << 30);
    bytes = std::min({bytes, kMostAddresses, limit_of(RLIMIT_AS) / 4, limit_of(RLIMIT_FSIZE)}) / page_bytes() *
            page_bytes();
    if (const size_t least = head + Heap::bytes_for(group_segment_bytes(world_size)); bytes < least)
        throw OutOfMemory("the shared segment needs " + mib(least) + ", " + mib(bytes) +
                          " are available under this process's limits (ulimit -v, -f)");

    Descriptor fd(memfd_create("rankwise", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) fail_system("memfd_create");
    if (ftruncate(fd.get(), off_t(bytes)) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        fail_system("sizing the shared segment");
    if (fallocate(fd.get(), 0, 0, off_t(head)) != 0)
        throw OutOfMemory("the shared segment needs " + mib(head) + ", " + mib(available_memory()) + " are available");
    std::shared_ptr<Segment> segment(new Segment(std::move(fd), bytes));
    SegmentHeader& h = segment->header();
    h.bytes = bytes;
    h.world_size = segment->world_size_ = world_size;
    h.started = ClockReading::now();
    h.next_group = nodes > 1 ? uint32_t(node) + 1 : 0;
    h.group_step = uint32_t(nodes);
    segment->heap_.create(head, bytes);
    segment->heap_.separate_areas();
    std::vector<Member> everyone;
    for (int r = 0; r < world_size; ++r) everyone.push_back({r, 0});
    h.world_group = create_group_segment(*segment, everyone);
    segment->at<GroupSegment>(h.world_group)->attached.fetch_add(1);
    std::string_view(version()).copy(h.release, sizeof h.release);
    h.magic = kSegmentMagic;
    segment->progress_threads.resize(size_t(world_size));
    return segment;
}

size_t sealed_bytes(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        throw BadArgument("fd: " + std::to_string(fd) + " given, expected an open descriptor of a rankwise segment");
    constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & sealed) != sealed)
        throw BadArgument("fd: " + std::to_string(fd) + " is not a rankwise segment: its size is not sealed");
    struct statfs system;  // huge pages may be lacking when they are used
    if (size_t(info.st_size) < sizeof(SegmentHeader) || fstatfs(fd, &system) != 0 || system.f_type == HUGETLBFS_MAGIC)
        throw BadArgument("fd: " + std::to_string(fd) + " is not a rankwise segment");
    return size_t(info.st_size);
}

void check_release(const SegmentHeader& header, int fd) {
    const std::string segment = "fd: " + std::to_string(fd) + " is ";
    if (header.magic != kSegmentMagic) throw BadArgument(segment + "not a rankwise segment");
    if (const std::string theirs = printable(header.release); theirs != version())
        throw BadArgument(segment + "a segment of rankwise " + theirs + ", and this process runs rankwise " +
                          version() + ": expected the same version in all processes of a job");
}

std::shared_ptr<Segment> Segment::attach(int fd) {
    const size_t bytes = sealed_bytes(fd);
    Descriptor own(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!own) fail_system("duplicating the segment's descriptor");
    std::shared_ptr<Segment> segment(new Segment(std::move(own), bytes));
    const SegmentHeader& header = segment->header();
    check_release(header, fd);
    if (header.bytes != bytes || !valid_world_size(segment->world_size()) ||
        !segment->heap().is_made_of(SegmentLayout(segment->world_size()).heap, bytes))
        throw BadArgument("fd: " + std::to_string(fd) + " is a rankwise segment with an invalid header");
    segment->heap_.separate_areas();
    segment->progress_threads.resize(size_t(segment->world_size()));
    return segment;
}

void Segment::add_pidfd(int rank, int pidfd) {
    const int own = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) fail_system("duplicating the descriptor of another rank's process");
    const std::lock_guard lock(pidfds_mutex_);
    const auto [known, added] = pidfds_.emplace(rank, own);
    if (!added) close(std::exchange(known->second, own));
}

int Segment::take_pidfd(int rank) {
    const std::lock_guard lock(pidfds_mutex_);
    const auto taken = pidfds_.extract(rank);
    return taken ? taken.mapped() : -1;
}

void Segment::name_group(uint32_t number, const std::string& name) {
    GroupName& entry = header_->group_names[number % kNamedGroups];
    if (number == 0 || entry.number.load() == number ||
        entry.number.exchange(GroupName::kBeingWritten) == GroupName::kBeingWritten)
        return;
    std::string text;
    for (const char c : name)
        if ((c & 0xc0) != 0x80) text += c >= ' ' && c <= '~' ? c : '?';  // not a later byte of a character in UTF-8
    text.resize(sizeof entry.words);
    for (size_t i = 0; i < GroupName::kWords; ++i) {
        uint64_t word;
        std::memcpy(&word, text.data() + i * sizeof word, sizeof word);
        entry.words[i].store(word);
    }
    entry.number.store(number);
}

std::string name_of_group(const SegmentHeader& header, uint32_t number) {
    const GroupName& entry = header.group_names[number % kNamedGroups];
    char text[GroupName::kWords * sizeof(uint64_t)];
    const uint64_t before = entry.number.load();
    for (size_t i = 0; i < GroupName::kWords; ++i) {
        const uint64_t word = entry.words[i].load();
        std::memcpy(text + i * sizeof word, &word, sizeof word);
    }
    const bool named = number != 0 && before == number && entry.number.load() == number;
    return named ? "'" + printable(text) + "'" : std::to_string(number);
}

void Segment::announce_roster() { futex_notify(header_->roster); }

void Segment::mark_ended(int rank, int32_t status, uint32_t process) {
    RankRecord& r = record(rank);
    if (status != kStatusUnknown) {
        const uint64_t known = uint64_t(process + 1) << 32 | uint32_t(status);
        for (uint64_t now = r.exit_status.load();
             now >> 32 <= process && !r.exit_status.compare_exchange_weak(now, known);) {
        }
    }
    // Every rank that notices the exit fails the groups, until one rank has failed them all: the first may have died
    // while it did so.
    if (r.groups_failed.load() > process) return;
    if (!ended(rank, process)) r.ended_at.store(Clock::now());
    raise_to(r.ended, process + 1);
    announce_roster();
    std::vector<uint64_t> unused;
    heap_.visit(BlockKind::GroupSegment, [&](uint64_t offset) {
        GroupSegment* const group = find_group(*this, offset);
        if (!group) return;
        if (const int peer = fail_for_ended_process(*group, rank, process); peer >= 0 && group->detach(peer))
            unused.push_back(offset);
    });
    for (uint64_t group : unused) release_group_segment(*this, group);
    raise_to(r.groups_failed, process + 1);
}

int64_t Segment::present_process(int rank) const {
    const int64_t latest = int64_t(record(rank).joined.load()) - 1;
    return latest >= 0 && !ended(rank, uint32_t(latest)) ? latest : -1;
}

int32_t Segment::exit_status(int rank, uint32_t process) const {
    const uint64_t known = record(rank).exit_status.load();
    return known >> 32 == process + 1 ? int32_t(uint32_t(known)) : kStatusUnknown;
}

void Segment::give_up(int rank) {
    record(rank).given_up.store(1);
    announce_roster();
}

std::string Segment::await_how_it_ended(int rank, uint32_t process, Embedding& program) const {
    const RankRecord& r = record(rank);
    const auto ends = [&] { return ended(rank, process) || r.ending.load() > process; };
    const auto begun = Clock::now();
    const auto known = [&] {
        if (exit_status(rank, process) != kStatusUnknown || r.exit_status.load() >> 32 > process) return true;
        const auto spent = Clock::now() - (ended(rank, process) ? r.ended_at.load() : begun);
        return spent > (header_->statuses_expected.load() && ends() ? kSureStatus : kLikelyStatus);
    };
    Waiter(kSureStatus, program).check_every(std::chrono::milliseconds(1), known);
    const int32_t status = exit_status(rank, process);
    if (status == kStatusUnknown) return ends() ? "ended" : "left the group";
    if (status < 0) return "was killed by " + signal_name(-status);
    return "exited with status " + std::to_string(status);
}

}  // namespace rankwise
