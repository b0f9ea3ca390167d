// Scatter of an array of which only root knows the dtype and shape: its header goes first, and short parts go with it.
//
// inline: in the slot header, header and all parts to all ranks. staged: the header in the slot header, the parts in root's
// slot. separate: the header alone; the parts follow in a scatter of their own.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// Bytes of each part, where the first axis of an array that a header can describe divides evenly; else none. The
// header alone says it, so that all ranks agree.
size_t part_of(const SlotProtocol& s, const ArrayHeader& header) {
    if (header.dims < 1 || header.dims > ArrayHeader::kDims || header.dim[0] % s.n) return tuning::kNoPart;
    return header.bytes() / size_t(s.n);
}

Algorithm algorithm_of(const SlotProtocol& s, const ArrayHeader& header, size_t part) {
    return tuning::scatter_described(s.conditions(), header.used(), part, share_of_slot(s));
}

// Not inlined, as in pipeline().
[[gnu::noinline]] void write_parts(SlotProtocol& s, const ArrayHeader& header, const uint8_t* send, size_t part) {
    const SideBySide cut(s, part);
    const uint64_t taken = s.take(cut.bytes);
    s.claim(taken);
    for (int to = 0; to < s.n; ++to)
        if (to != s.rank) std::memcpy(s.slot(s.rank, taken) + cut.place(s.rank, to), send + size_t(to) * part, part);
    s.post(&header, header.used());
    s.release(taken);
}

[[gnu::noinline]] void read_part(SlotProtocol& s, const Place& place, size_t part, int root) {
    const SideBySide cut(s, part);
    const uint64_t taken = s.take(cut.bytes);  // before `place`, which may throw
    std::memcpy(place(part), s.slot(root, taken) + cut.place(root, s.rank), part);
    s.release(taken);
}

bool describe(SlotProtocol& s, ArrayHeader& header, const uint8_t* send, uint8_t* recv, int root) {
    const size_t part = part_of(s, header), used = header.used();
    const Algorithm algorithm = algorithm_of(s, header, part);
    if (algorithm == Algorithm::Inline) {
        const size_t total = part * size_t(s.n);
        if (total) std::memcpy(reinterpret_cast<uint8_t*>(&header) + used, send, total);
        s.post(&header, used + total);
    } else if (algorithm == Algorithm::Staged && s.n > 1) {
        write_parts(s, header, send, part);
    } else {
        s.post(&header, used);
    }
    if (algorithm == Algorithm::Separate) return false;
    if (part) keep_own(s, recv, send + size_t(root) * part, part, part);
    return true;
}

}  // namespace

bool scatter_described(SlotProtocol& s, ArrayHeader& header, const uint8_t* send, uint8_t* recv, const Place& place, int root) {
    if (s.rank == root) return describe(s, header, send, recv, root);
    const uint64_t step = s.post();
    s.await_sender(root, step);
    std::memcpy(&header, s.payload(root, step), sizeof header);
    const size_t part = part_of(s, header);
    switch (algorithm_of(s, header, part)) {
    case Algorithm::Inline: {
        uint8_t* to = place(part);
        if (part) std::memcpy(to, s.payload(root, step) + header.used() + size_t(s.rank) * part, part);
        return true;
    }
    case Algorithm::Staged: return read_part(s, place, part, root), true;
    default: return false;
    }
}

}  // namespace rankwise::collectives
