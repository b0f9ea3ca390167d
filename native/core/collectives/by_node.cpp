// Reductions and broadcasts on several NUMA nodes: each byte of an array crosses between two nodes once, and not once
// for each rank. All data travels through the slots, in pieces.
//
// A reduction passes from node to node. As in the staged algorithm (all_reduce.cpp), a piece is divided into shares: as
// many as the smallest node has ranks, so that each share has a rank at its place in every node. Its rank in the first
// node reduces that node's arrays. Its rank in the next node continues from this partial result with the arrays of that
// node, and so on; its rank in the last node computes the result. In an all_reduce, its ranks in the other nodes then
// copy the result into their slots, from which the ranks of their node read it. So the operands are reduced node by
// node, and within a node in the order of its ranks. Where the ranks of each node are consecutive, this is rank order,
// and the result has the same bits as with any other algorithm. Elsewhere it still has the same bits on every rank.
// Types that are accumulated in f32 have partial results in f32.
//
// In a broadcast, each rank of every other node copies a share of root's data into its slot, and the ranks of the node
// then read the shares from each other's slots.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// Reduces the arrays of a node's ranks, after the partial result of the previous node, if there is one.
class Partial {
public:
    Partial(Transport& t, size_t item, ReduceKernel kernel)
        : widen_(widen_kernel(t.log.call().dtype())), narrow_(narrow_kernel(t.log.call().dtype())),
          kernel_(widen_ ? reduce_kernel(DType::F32, t.log.call().reduce()) : kernel), item_(item),
          scratch_(t.scratch()) {}
    bool wide() const { return widen_; }
    size_t width() const { return widen_ ? sizeof(float) : item_; }  // bytes of an element of a partial result
    // Writes the result of `count` elements to `to`: a partial one, or, if this node is the last, the final one, which
    // MEAN divides by `divisor`. previous: the previous node's partial result, or null. sources: the n arrays;
    // sources[-1] must be writable.
    void reduce(uint8_t* to, const void* previous, const void** sources, int n, size_t count, bool last,
                int divisor) const {
        if (!wide()) {
            if (previous) *--sources = previous, ++n;
            kernel_(scratch_, sources, n, count, last ? divisor : 1);
            std::memcpy(to, scratch_, count * item_);  // memcpy does not fetch the slot's lines from their last readers
            return;
        }
        uint8_t* const sum = scratch_;
        uint8_t* const term = scratch_ + kCacheBlock;
        int next = 0;
        if (previous) std::memcpy(sum, previous, count * sizeof(float));
        else widen_(sum, sources[next++], count);
        for (; next < n; ++next) {
            widen_(term, sources[next], count);
            const void* both[] = {sum, term};
            kernel_(sum, both, 2, count, 1);
        }
        if (!last) {
            std::memcpy(to, sum, count * sizeof(float));
            return;
        }
        const void* all[] = {sum};
        kernel_(sum, all, 1, count, divisor);
        narrow_(to, sum, count);
    }

private:
    const ConvertKernel widen_, narrow_;
    const ReduceKernel kernel_;
    const size_t item_;
    uint8_t* const scratch_;
};

}  // namespace

void reduce_by_node(Transport& t, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root) {
    StepRing& s = t.ring;
    const NumaNodes& nodes = t.conditions().nodes;
    const int places = int(nodes.smallest()), node = nodes.of[s.rank], place = nodes.place[s.rank],
              last = int(nodes.members.size()) - 1;
    const std::vector<int>& here = nodes.members[node];
    const bool reduces = place < places, receives = root < 0 || s.rank == root;
    const Partial partial(t, item, kernel);
    // A wide partial result is after the piece in the slot; any other is where the share of the result will be.
    const size_t growth = partial.width() / item,
                 piece = partial.wide() ? s.slot_bytes() / (1 + growth) / 64 * 64 : s.slot_bytes();
    const auto partial_at = [&](size_t at) { return partial.wide() ? piece + at * growth : at; };
    const uint64_t rounds = rounds_of(bytes, piece);
    const Copy to_result = s.copy_for(bytes * size_t(s.n));
    // For each piece in flight: its position, and the steps that announce that it is filled, reduced and spread.
    uint64_t position[kSlots], filled[kSlots], reduced[kSlots], spread[kSlots];

    auto fill = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        const Shares shares(p.bytes, places);
        position[k % kSlots] = s.reserve(partial.wide() ? piece * (1 + growth) : p.bytes);
        s.await_free(position[k % kSlots]);
        uint8_t* slot = s.slot(s.rank, position[k % kSlots]);
        const size_t b = shares.begin(place),
                     e = shares.end(place);  // both are p.bytes if this rank's place has no share
        std::memcpy(slot, data + p.offset, b);
        std::memcpy(slot + e, data + p.offset + e, p.bytes - e);
        filled[k % kSlots] = s.post();
    };
    auto reduce_share = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        const Shares shares(p.bytes, places);
        const uint64_t at_position = position[k % kSlots];
        if (k == 0) s.await_all(filled[0]);  // compares all calls: a mismatched call must not change data
        for (int r : here)
            if (reduces && r != s.rank) s.await(r, filled[k % kSlots]);
        const uint8_t* previous = nullptr;
        if (reduces && node > 0) {
            const int before = nodes.members[node - 1][place];
            s.await(before, s.next_step());
            previous = s.slot(before, at_position);
        }
        for (size_t at = shares.begin(place), end = shares.end(place); at < end; at += kCacheBlock / growth) {
            const size_t count = std::min(kCacheBlock / growth, end - at) / item;
            const void* sources[1 + kMaxRanks];
            for (size_t i = 0; i < here.size(); ++i)
                sources[1 + i] = (here[i] == s.rank ? data + p.offset : s.slot(here[i], at_position)) + at;
            partial.reduce(s.slot(s.rank, at_position) + (node == last ? at : partial_at(at)),
                           previous ? previous + partial_at(at) : nullptr, sources + 1, int(here.size()), count,
                           node == last, s.n);
        }
        reduced[k % kSlots] = s.post();
    };
    auto spread_share = [&](uint64_t k) {
        if (reduces && node != last) {
            const Shares shares(Piece(k, piece, bytes).bytes, places);
            const int from = nodes.members[last][place];
            const size_t b = shares.begin(place), e = shares.end(place);
            s.await(from, reduced[k % kSlots]);
            std::memcpy(s.slot(s.rank, position[k % kSlots]) + b, s.slot(from, position[k % kSlots]) + b, e - b);
        }
        spread[k % kSlots] = s.post();
    };
    auto copy_out = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        const Shares shares(p.bytes, places);
        for (int i = 0; receives && i < places; ++i) {
            const int share = (place + i) % places, from = nodes.members[root < 0 ? node : last][share];
            if (from != s.rank) s.await(from, root < 0 ? spread[k % kSlots] : reduced[k % kSlots]);
            const size_t b = shares.begin(share), e = shares.end(share);
            to_result(data + p.offset + b, s.slot(from, position[k % kSlots]) + b, e - b);
        }
        s.release(position[k % kSlots]);
    };
    for (uint64_t k = 0; k < rounds + 3; ++k) {
        if (k >= 3) copy_out(k - 3);  // before `fill`, whose step also announces that this slot is free
        if (k < rounds) fill(k);
        if (k >= 1 && k - 1 < rounds) reduce_share(k - 1);
        if (root < 0 && k >= 2 && k - 2 < rounds) spread_share(k - 2);
    }
}

void broadcast_by_node(Transport& t, uint8_t* data, size_t bytes, int root) {
    StepRing& s = t.ring;
    const NumaNodes& nodes = t.conditions().nodes;
    const std::vector<int>& here = nodes.members[nodes.of[s.rank]];
    const bool from_me = s.rank == root, beside_root = nodes.of[s.rank] == nodes.of[root];
    const int place = nodes.place[s.rank];
    const size_t piece = s.slot_bytes();
    const uint64_t rounds = rounds_of(bytes, piece);
    const Copy to_result = s.copy_for(bytes * size_t(s.n));
    // For each piece in flight: its position, and the steps that announce that root's slot and the node's slots are
    // filled.
    uint64_t position[kSlots], filled[kSlots], spread[kSlots];

    auto await_root = [&](uint64_t k) {
        if (k == 0) s.await_all(filled[0]);  // compares all calls: a mismatched call must not change data
        else s.await(root, filled[k % kSlots]);
    };
    auto fill = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        position[k % kSlots] = s.reserve(p.bytes);
        if (from_me) {
            s.await_free(position[k % kSlots]);
            std::memcpy(s.slot(root, position[k % kSlots]), data + p.offset, p.bytes);
        }
        filled[k % kSlots] = s.post();
    };
    auto spread_share = [&](uint64_t k) {
        if (!beside_root) {
            const Shares shares(Piece(k, piece, bytes).bytes, int(here.size()));
            const size_t b = shares.begin(place), e = shares.end(place);
            await_root(k);
            s.await_free(position[k % kSlots]);
            std::memcpy(s.slot(s.rank, position[k % kSlots]) + b, s.slot(root, position[k % kSlots]) + b, e - b);
        }
        spread[k % kSlots] = s.post();
    };
    auto copy_out = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        if (beside_root && !from_me) {
            await_root(k);
            to_result(data + p.offset, s.slot(root, position[k % kSlots]), p.bytes);
        }
        const Shares shares(p.bytes, int(here.size()));
        for (size_t i = 0; !beside_root && i < here.size(); ++i) {
            const size_t share = (size_t(place) + i) % here.size();
            const int from = here[share];
            if (from != s.rank) s.await(from, spread[k % kSlots]);
            const size_t b = shares.begin(int(share)), e = shares.end(int(share));
            to_result(data + p.offset + b, s.slot(from, position[k % kSlots]) + b, e - b);
        }
        s.release(position[k % kSlots]);
    };
    for (uint64_t k = 0; k < rounds + 2; ++k) {
        if (k >= 2) copy_out(k - 2);
        if (k < rounds) fill(k);
        if (k >= 1 && k - 1 < rounds) spread_share(k - 1);
    }
}

}  // namespace rankwise::collectives
