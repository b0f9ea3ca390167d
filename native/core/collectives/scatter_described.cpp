// Scatter of an array whose dtype and shape only root knows: root sends a header first, and short parts with it.
//
// inline: the slot header carries the header and all parts to all ranks. staged: the header travels in the slot header,
// the parts in root's slot. separate: only the header is sent; the parts follow in a second scatter.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// The bytes of each part, or kNoPart if the header cannot describe the array or the ranks cannot divide its first axis
// evenly. Depends on the header alone, so that all ranks agree.
size_t part_of(const StepRing& s, const ArrayHeader& header) {
    if (header.dims < 1 || header.dims > ArrayHeader::kDims || header.dim[0] % s.n) return tuning::kNoPart;
    return header.bytes() / size_t(s.n);
}

Algorithm algorithm_of(const Transport& t, const ArrayHeader& header, size_t part) {
    return tuning::scatter_described(t.conditions(), header.used(), part, share_of_slot(t.ring));
}

// Not inlined, as in pipeline().
[[gnu::noinline]] void write_parts(StepRing& s, const ArrayHeader& header, const uint8_t* send, size_t part) {
    const DividedSlot divided(s, part);
    const uint64_t position = s.reserve(divided.bytes);
    s.await_free(position);
    for (int to = 0; to < s.n; ++to)
        if (to != s.rank)
            copy_for_peers(s.slot(s.rank, position) + divided.offset(s.rank, to), send + size_t(to) * part, part);
    s.post(&header, header.used());
    s.release(position);
}

[[gnu::noinline]] void read_part(StepRing& s, const PartBuffer& part_buffer, size_t part, int root) {
    const DividedSlot divided(s, part);
    const uint64_t position = s.reserve(divided.bytes);  // before part_buffer, which may throw
    copy_bytes(part_buffer(part), s.slot(root, position) + divided.offset(root, s.rank), part);
    s.release(position);
}

bool send_described(Transport& t, ArrayHeader& header, const uint8_t* send, uint8_t* recv, int root) {
    StepRing& s = t.ring;
    const size_t part = part_of(s, header), used = header.used();
    const Algorithm algorithm = algorithm_of(t, header, part);
    if (algorithm == Algorithm::Inline) {
        const size_t total = part * size_t(s.n);
        copy_bytes(reinterpret_cast<uint8_t*>(&header) + used, send, total);
        s.post(&header, used + total);
    } else if (algorithm == Algorithm::Staged && s.n > 1) {
        write_parts(s, header, send, part);
    } else {
        s.post(&header, used);
    }
    if (algorithm == Algorithm::Separate) return false;
    if (part) copy_own_block(s, recv, send + size_t(root) * part, part, part);
    return true;
}

}  // namespace

bool scatter_described(Transport& t, ArrayHeader& header, const uint8_t* send, uint8_t* recv,
                       const PartBuffer& part_buffer, int root) {
    StepRing& s = t.ring;
    if (s.rank == root) return send_described(t, header, send, recv, root);
    const uint64_t step = s.post();
    s.await_sender(root, step);
    copy_bytes(&header, s.payload(root, step), sizeof header);
    if (header.dtype < 0 || header.dtype >= kDTypes) t.failures.throw_overwritten("a slot header", root);
    const size_t part = part_of(s, header);
    switch (algorithm_of(t, header, part)) {
    case Algorithm::Inline: {
        uint8_t* to = part_buffer(part);
        copy_bytes(to, s.payload(root, step) + header.used() + size_t(s.rank) * part, part);
        return true;
    }
    case Algorithm::Staged: return read_part(s, part_buffer, part, root), true;
    default: return false;
    }
}

}  // namespace rankwise::collectives
