// The heap of a shared segment: the memory of its groups, channels, buffers and texts.
//
// A rank may be killed or stopped at any moment, and the others go on; so the heap has no lock. It consists of units,
// each with a word in a table, and every change is one store or compare-and-swap of one word. A block is a row of
// units. Whoever allocates it reserves its units one by one, and then publishes the block; whoever frees it retires it,
// reserves it again when nobody visits it, clears its pages, and frees its units, or keeps it for the next block of its
// size. What a process had reserved when it died is freed by the next process that finds it. What a stopped process has
// reserved stays reserved, and the others use other units. What a process had published stays when it dies: groups and
// their channels until their last rank detaches (Segment::mark_ended), arrays until free_buffers_of_ended.
//
// The memory of users' arrays lies apart from all else, between pages that nobody can access: what a program writes
// beyond an array ends the program there, and does not change what the ranks agree on.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/sizes.hpp"

namespace rankwise {

struct RankRecord;

// Free: clean and unused. Reserved: by a process that allocates or frees it. Continued: not the first unit of its
// block. Retired: freed as soon as nobody visits it. Kept: unused, with its memory. The others are published.
enum class BlockKind : uint8_t {
    Free,
    Reserved,
    Continued,
    Retired,
    Kept,
    GroupSegment,
    Channel,
    Buffer,
    Text,
    Extension,
    SharedHeader,
    SharedData
};

enum class Area : uint8_t { Control, Data };
inline constexpr Area kAreas[] = {Area::Control, Area::Data};
constexpr Area area_of(BlockKind kind) {
    return kind == BlockKind::Buffer || kind == BlockKind::SharedData ? Area::Data : Area::Control;
}

struct HeapHeader {
    uint64_t table;  // offset of the units' words; what precedes it never moves
    uint64_t first;  // offset of the first unit's memory
    uint32_t units;
    // How many units of each area, from its first, have ever been used. The words of the others have no memory yet.
    std::atomic<uint32_t> used[std::size(kAreas)];
};

class Heap {
public:
    // ranks: the records that say which processes have ended.
    Heap(int fd, uint8_t* base, HeapHeader& header, const RankRecord* ranks)
        : fd_(fd), base_(base), header_(header), ranks_(ranks), table_(header.table), first_(header.first),
          units_(header.units) {
        divide();
    }
    // Whether it is what `create` makes of these bytes.
    bool is_made_of(uint64_t begin, uint64_t end) const;
    // Which rank's process this is, and its number. Without it, nothing that this process reserves or allocates is
    // freed after its death.
    void set_owner(int rank, uint32_t process);
    bool has_owner() const { return owner_ != kNobody; }  // whether this process is a rank
    // Makes a heap of the segment's bytes from `begin` to `end`.
    void create(uint64_t begin, uint64_t end);
    // How many bytes a heap must have so that a block of `bytes` fits into each area.
    static size_t bytes_for(size_t bytes);
    // From now on this process cannot access what separates the areas. Throws Error.
    void separate_areas() const;
    struct Range {
        uint64_t begin, bytes;
    };
    const Range& bytes_of(Area area) const { return areas_[size_t(area)]; }
    // Whether these bytes lie in the area.
    bool contains(Area area, uint64_t offset, size_t bytes) const {
        const Range& all = bytes_of(area);
        const uint64_t at = offset - all.begin;  // wraps around for an offset before the area
        return at < all.bytes && bytes <= all.bytes - at;
    }

    // Zeroed memory, aligned to pages; returns its offset. Throws OutOfMemory. `allocate` publishes the block at once.
    // Between `reserve` and `publish` nobody visits the block, and it is freed if this process dies. Of a reserved
    // block only the first `committed` bytes have memory; the others must not be used before `commit` has given them
    // memory.
    uint64_t allocate(size_t bytes, BlockKind kind) const;
    uint64_t reserve(Area area, size_t bytes, size_t committed) const;
    void commit(uint64_t offset, size_t bytes) const;
    void publish(uint64_t offset, BlockKind kind) const;
    // Frees the block, reserved or published, as soon as nobody visits it.
    void release(uint64_t offset) const;
    // Like release, but its memory is kept for the next blocks of its size, up to
    // kKeptGroupMemory, until memory is short. reserve_kept is reserve for these, in Area::Control. The memory that
    // `commit` then gives may hold anything.
    void keep(uint64_t offset) const;
    uint64_t reserve_kept(size_t bytes, size_t committed) const;
    // The bytes of the published block of this kind that begins here, or 0 if there is none: what a stray write has put
    // in place of an offset must not be used as one.
    size_t block_bytes(uint64_t offset, BlockKind kind) const;
    // Calls `visit` for each published block of this kind; the block is not freed during the call. Visitors are
    // only counted, so a block that a process visited when it was killed stays allocated until the job ends.
    void visit(BlockKind kind, const std::function<void(uint64_t offset)>& visit) const;
    // The same for one block, if this is the offset of a published block of this kind.
    void visit_block(uint64_t offset, BlockKind kind, const std::function<void(uint64_t offset)>& visit) const;
    // Frees the buffers of processes that have ended. The caller makes sure that nobody still writes there.
    void free_buffers_of_ended() const;
    size_t allocated_blocks() const;

private:
    static constexpr uint32_t kNobody = 0xffffff;  // a process that is no rank, or whose threads are ranks
    struct alignas(8) Word {                       // else clang 14 calls libatomic
        uint32_t number =
            0;  // in a block's first unit, how many units the block has; in a Continued one, how many precede it
        uint32_t owner : 24 =
            0;  // who has reserved or allocated the block: the rank in the low bits, the number of its process above
        BlockKind kind : 8 = BlockKind::Free;
        bool operator==(const Word&) const = default;
    };
    struct Unit {
        std::atomic<Word> word;
        std::atomic<uint32_t> visitors;
    };
    static_assert(sizeof(Word) == 8 && std::atomic<Word>::is_always_lock_free);
    struct Indices {
        uint32_t begin, end;
    };

    static uint32_t units_between(uint64_t begin, uint64_t end);
    Unit& unit(uint32_t index) const { return reinterpret_cast<Unit*>(base_ + table_)[index]; }
    void divide();
    Indices indices_of(Area area) const;
    Indices used_indices(Area area) const;
    uint64_t offset_of(uint32_t index) const;
    uint32_t index_of(uint64_t offset) const;
    template <class Check> void walk(Area area, const Check& check) const;
    uint32_t find(Area area, size_t units) const;
    bool claim(Area area, uint32_t index, uint32_t units) const;
    bool has_ended(uint32_t owner) const;
    bool abandoned(uint32_t index, Word word) const;
    bool reserve_again(uint32_t index, Word word, uint32_t units) const;
    void retire(uint32_t index, Word word, bool keep = false) const;
    void free_if_unvisited(uint32_t index, bool keep = false) const;
    size_t kept_bytes() const;
    bool free_kept() const;
    void free_reserved(uint32_t index, uint32_t units) const;
    uint32_t length_of(uint32_t index, Word word) const;
    bool clear(uint64_t begin, size_t bytes) const;
    bool give_memory(uint64_t begin, uint64_t end) const;

    int fd_;
    uint8_t* base_;
    HeapHeader& header_;
    const RankRecord* ranks_;
    uint64_t table_, first_;  // as in the header, where a stray write may have changed them since
    uint32_t units_;
    std::array<Range, std::size(kAreas)> areas_;
    uint32_t owner_ = kNobody;
};

// Bytes that can still be allocated before the machine or the cgroup runs out of memory.
size_t available_memory();

}  // namespace rankwise
