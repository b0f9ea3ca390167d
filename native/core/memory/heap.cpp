#include "memory/heap.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/errors.hpp"
#include "base/policy.hpp"
#include "base/raise_to.hpp"
#include "base/text.hpp"
#include "memory/segment.hpp"

namespace rankwise {

namespace {

// Of address space, a multiple of every page; a block has pages only for the bytes that it needs.
constexpr size_t kUnit = 64 << 10;
constexpr uint32_t kGap = 1;   // units behind each area, which nobody can access
constexpr int kRankBits = 10;  // the low bits of an owner
static_assert(kMaxRanks == 1 << kRankBits);

}  // namespace

size_t available_memory() {
    size_t available = SIZE_MAX;
    const std::string machine = contents("/proc/meminfo"), key = "MemAvailable:";
    if (const auto found = machine.find(key); found != machine.npos)
        available = std::strtoull(&machine[found + key.size()], nullptr, 10) * 1024;  // it is in KiB
    const std::string most = contents("/sys/fs/cgroup/memory.max"), now = contents("/sys/fs/cgroup/memory.current");
    const size_t limit = std::strtoull(most.c_str(), nullptr, 10), used = std::strtoull(now.c_str(), nullptr, 10);
    if (limit > 0 && !now.empty()) available = std::min(available, limit > used ? limit - used : 0);  // "max" is 0
    return available;
}

uint64_t Heap::offset_of(uint32_t index) const { return first_ + uint64_t(index) * kUnit; }
uint32_t Heap::index_of(uint64_t offset) const { return uint32_t((offset - first_) / kUnit); }
size_t Heap::bytes_for(size_t bytes) {
    const size_t half = bytes / kUnit + 1 + kGap;
    return 2 * half * (kUnit + sizeof(Unit)) + page_bytes();  // as create and divide divide them
}

void Heap::create(uint64_t begin, uint64_t end) {
    if (page_bytes() > kUnit)
        throw Error("this system has pages of " + std::to_string(page_bytes() / KiB) +
                    " KiB, and rankwise needs pages of " + std::to_string(kUnit / KiB) + " KiB or less");
    header_.table = table_ = begin;
    header_.units = units_ = units_between(begin, end);
    header_.first = first_ = round_up(begin + units_ * sizeof(Unit), page_bytes());
    divide();
}

void Heap::divide() {
    const uint64_t half = units_ / 2;
    areas_ = {{{first_, (half - kGap) * kUnit}, {first_ + half * kUnit, (units_ - half - kGap) * kUnit}}};
}

void Heap::separate_areas() const {
    for (const Range& area : areas_)
        if (mprotect(base_ + area.begin + area.bytes, kGap * kUnit, PROT_NONE) != 0)
            throw Error(std::string("protecting the shared segment: ") + std::strerror(errno));
}

uint32_t Heap::units_between(uint64_t begin, uint64_t end) {
    return uint32_t((end - begin - page_bytes()) / (kUnit + sizeof(Unit)));
}

bool Heap::is_made_of(uint64_t begin, uint64_t end) const {
    return begin < end && end - begin > page_bytes() && table_ == begin && units_ == units_between(begin, end) &&
           units_ > 2 * kGap && first_ == round_up(begin + units_ * sizeof(Unit), page_bytes());
}

Heap::Indices Heap::indices_of(Area area) const {
    const Range& all = bytes_of(area);
    return {index_of(all.begin), index_of(all.begin + all.bytes)};
}

Heap::Indices Heap::used_indices(Area area) const {
    const auto [begin, end] = indices_of(area);
    return {begin, begin + std::min(header_.used[size_t(area)].load(), end - begin)};
}

// Gives memory to these bytes where they have none yet. Returns false if there is none to give.
bool Heap::give_memory(uint64_t begin, uint64_t end) const {
    while (fallocate(fd_, 0, off_t(begin), off_t(end - begin)) != 0)
        if (errno != EINTR) return false;
    return true;
}

void Heap::set_owner(int rank, uint32_t process) {
    const uint32_t owner = process << kRankBits | uint32_t(rank);
    if (process >= kNobody >> kRankBits)
        throw Error("rank " + std::to_string(rank) + " was restarted " + std::to_string(process) +
                    " times, which is more than the shared segment can count");
    owner_ = owner;
}

bool Heap::has_ended(uint32_t owner) const {
    return owner != kNobody && ranks_[owner % kMaxRanks].ended.load() > owner >> kRankBits;
}

// Whether the process that has reserved this unit, alone or as the first of several, has ended.
bool Heap::abandoned(uint32_t index, Word word) const {
    switch (word.kind) {
    case BlockKind::Reserved: return has_ended(word.owner);
    case BlockKind::Continued: {
        if (!has_ended(word.owner) || word.number > index) return false;
        const Word first = unit(index - word.number).word.load();  // after its owner has ended, it is not published
        return first.kind == BlockKind::Free || first.kind == BlockKind::Continued || first.number <= word.number;
    }
    default: return false;
    }
}

// Calls `check(index, word)` for each block, and for each unit that is free or that a process is just reserving or
// freeing, until `check` returns false. On the way it frees what is abandoned.
template <class Check> void Heap::walk(Area area, const Check& check) const {
    for (uint32_t index = indices_of(area).begin; index < used_indices(area).end;) {
        Word word = unit(index).word.load();
        const uint32_t units = length_of(index, word);
        if (word.kind == BlockKind::Retired) free_if_unvisited(index);
        else if (abandoned(index, word) && reserve_again(index, word, units)) free_reserved(index, units);
        word = unit(index).word.load();
        if (!check(index, word)) return;
        index += length_of(index, word);
    }
}

// The length of the block that begins here, in units: 1 for a unit that is in no block, or whose word a stray write has
// overwritten.
uint32_t Heap::length_of(uint32_t index, Word word) const {
    const uint32_t data = indices_of(Area::Data).begin, end = indices_of(index < data ? Area::Control : Area::Data).end;
    const bool single =
        word.kind == BlockKind::Free || word.kind == BlockKind::Continued || !word.number || word.number > end - index;
    return single ? 1 : word.number;
}

// The index of the first of this many free units in a row. Throws OutOfMemory if there is no such row.
uint32_t Heap::find(Area area, size_t units) const {
    const Indices all = indices_of(area);
    uint32_t row = 0, end = all.begin, longest = 0;
    walk(area, [&](uint32_t index, Word word) {
        const bool free = word == Word{};  // and not only of this kind: claim would never get an overwritten one
        row = free && index == end ? row + 1 : free;
        end = index + 1;
        longest = std::max(longest, row);
        return row < units;
    });
    if (row >= units) return end - uint32_t(units);
    const uint32_t used = used_indices(area).end;
    if (end < used || !row) {
        row = 0;
        end = used;
    }
    if (all.end - end + row >= units) return end - row;
    if (free_kept()) return find(area, units);
    throw OutOfMemory("shared memory: " + mib(std::min(units, SIZE_MAX / kUnit) * kUnit) + " needed, " +
                      mib(std::max(longest, all.end - end + row) * kUnit) +
                      " available in one piece of the segment's " + mib(bytes_of(area).bytes));
}

// Reserves free units one by one. If another process was faster, it reserves none and returns false.
bool Heap::claim(Area area, uint32_t index, uint32_t units) const {
    if (const auto [begin, used] = used_indices(area); index + units > used) {
        const uint32_t end = index + units;
        if (!give_memory(table_ + used * sizeof(Unit), table_ + end * sizeof(Unit)))
            throw OutOfMemory("no memory for the heap of the shared segment");
        raise_to(header_.used[size_t(area)], end - begin);
    }
    for (uint32_t i = 0; i < units; ++i) {
        Word free{};
        if (unit(index + i).word.compare_exchange_strong(
                free, i ? Word{i, owner_, BlockKind::Continued} : Word{1, owner_, BlockKind::Reserved}))
            continue;
        while (i) unit(index + --i).word.store({});
        return false;
    }
    unit(index).word.store({units, owner_, BlockKind::Reserved});
    return true;
}

uint64_t Heap::reserve(Area area, size_t bytes, size_t committed) const {
    const size_t wanted = bytes / kUnit + (bytes % kUnit != 0);
    const uint32_t units = uint32_t(wanted);
    uint32_t index;
    do index = find(area, wanted);
    while (!claim(area, index, units));
    try {
        commit(offset_of(index), committed);
    } catch (...) {
        free_reserved(index, units);
        throw;
    }
    return offset_of(index);
}

// If memory is short, that is an error here and not a SIGBUS later.
void Heap::commit(uint64_t offset, size_t bytes) const {
    const size_t need = round_up(bytes, page_bytes());
    const auto given = [&] {
        return (need < kCheckedMemory || need <= available_memory()) && give_memory(offset, offset + need);
    };
    if (!given() && !(free_kept() && given()))
        throw OutOfMemory("shared memory: " + mib(need) + " needed, " + mib(available_memory()) + " available");
}

void Heap::publish(uint64_t offset, BlockKind kind) const {
    std::atomic<Word>& first = unit(index_of(offset)).word;
    Word word = first.load();
    word.kind = kind;
    first.store(word);
}

uint64_t Heap::allocate(size_t bytes, BlockKind kind) const {
    const uint64_t offset = reserve(area_of(kind), bytes, bytes);
    publish(offset, kind);
    return offset;
}

void Heap::release(uint64_t offset) const {
    const uint32_t index = index_of(offset);
    retire(index, unit(index).word.load());
}

size_t Heap::block_bytes(uint64_t offset, BlockKind kind) const {
    const Area area = area_of(kind);
    const uint32_t index = index_of(offset);
    if (!contains(area, offset, kUnit) || (offset - first_) % kUnit || index >= used_indices(area).end) return 0;
    const Word word = unit(index).word.load();
    return word.kind == kind ? length_of(index, word) * kUnit : 0;
}

void Heap::keep(uint64_t offset) const {
    const uint32_t index = index_of(offset);
    const Word word = unit(index).word.load();
    retire(index, word, kept_bytes() + length_of(index, word) * kUnit <= kKeptGroupMemory);
}

uint64_t Heap::reserve_kept(size_t bytes, size_t committed) const {
    uint64_t found = 0;
    walk(Area::Control, [&](uint32_t index, Word word) {
        const uint32_t units = length_of(index, word);
        if (word.kind != BlockKind::Kept || units != (bytes + kUnit - 1) / kUnit || !reserve_again(index, word, units))
            return true;
        if (give_memory(offset_of(index), offset_of(index) + committed)) found = offset_of(index);
        else free_reserved(index, units);
        return !found;
    });
    if (!found) return reserve(Area::Control, bytes, committed);
    std::memset(base_ + found, 0, committed);
    return found;
}

size_t Heap::kept_bytes() const {
    size_t kept = 0;
    walk(Area::Control, [&](uint32_t index, Word word) {
        if (word.kind == BlockKind::Kept) kept += length_of(index, word) * kUnit;
        return true;
    });
    return kept;
}

// Returns whether any block was kept.
bool Heap::free_kept() const {
    bool any = false;
    walk(Area::Control, [&](uint32_t index, Word word) {
        if (word.kind != BlockKind::Kept) return true;
        any = true;
        retire(index, word);
        return true;
    });
    return any;
}

void Heap::retire(uint32_t index, Word word, bool keep) const {
    Word retired = word;
    retired.kind = BlockKind::Retired;
    if (unit(index).word.compare_exchange_strong(word, retired)) free_if_unvisited(index, keep);
}

// Frees a retired block, or keeps it, if nobody visits it. Of several processes that find it so, one frees it.
void Heap::free_if_unvisited(uint32_t index, bool keep) const {
    Unit& first = unit(index);
    for (Word word; (word = first.word.load()).kind == BlockKind::Retired && first.visitors.load() == 0;) {
        const uint32_t units = length_of(index, word);
        if (!reserve_again(index, word, units)) return;
        if (first.visitors.load() == 0)
            return keep ? publish(offset_of(index), BlockKind::Kept) : free_reserved(index, units);
        first.word.store(word);  // a visitor has come meanwhile, perhaps because this is another block by now
    }
}

bool Heap::reserve_again(uint32_t index, Word word, uint32_t units) const {
    return unit(index).word.compare_exchange_strong(word, {units, owner_, BlockKind::Reserved});
}

// Gives the pages back to the system; when they are used again, they are zeroed. If the system keeps them, they are
// zeroed here, which requires that all have memory. Returns whether they are clean.
bool Heap::clear(uint64_t begin, size_t bytes) const {
    while (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(begin), off_t(bytes)) != 0) {
        if (errno == EINTR) continue;
        if (!give_memory(begin, begin + bytes)) return false;
        std::memset(base_ + begin, 0, bytes);
        break;
    }
    return true;
}

// Frees units that this process has reserved. If it dies before the first store to the first word, another process
// frees them together; if it dies later, each one alone.
void Heap::free_reserved(uint32_t index, uint32_t units) const {
    for (uint32_t i = 1; i < units; ++i) unit(index + i).word.store({i, owner_, BlockKind::Continued});
    unit(index).word.store({1, owner_, BlockKind::Reserved});
    if (!clear(offset_of(index), units * kUnit)) return;  // they stay reserved until this process has ended
    for (uint32_t i = 0; i < units; ++i) unit(index + i).word.store({});
}

// Sequentially consistent, as are the words: either whoever frees a block sees the visitor, or the visitor sees that it
// is no longer published.
void Heap::visit_block(uint64_t offset, BlockKind kind, const std::function<void(uint64_t)>& visit) const {
    struct Visit {
        const Heap& heap;
        uint32_t index;
        Visit(const Heap& heap, uint32_t index) : heap(heap), index(index) { heap.unit(index).visitors.fetch_add(1); }
        ~Visit() {
            if (heap.unit(index).visitors.fetch_sub(1) == 1) heap.free_if_unvisited(index);
        }
    };
    if (!block_bytes(offset, kind)) return;
    const Visit visiting(*this, index_of(offset));
    if (block_bytes(offset, kind)) visit(offset);
}

void Heap::visit(BlockKind kind, const std::function<void(uint64_t)>& visit) const {
    walk(area_of(kind), [&](uint32_t index, Word) {
        visit_block(offset_of(index), kind, visit);
        return true;
    });
}

void Heap::free_buffers_of_ended() const {
    walk(Area::Data, [&](uint32_t index, Word word) {
        if (word.kind == BlockKind::Buffer && has_ended(word.owner)) retire(index, word);
        return true;
    });
}

size_t Heap::allocated_blocks() const {
    size_t count = 0;
    for (const Area area : kAreas)
        walk(area, [&](uint32_t, Word word) {
            if (word.kind > BlockKind::Kept) ++count;
            return true;
        });
    return count;
}

}  // namespace rankwise
