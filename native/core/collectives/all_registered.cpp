#include "collectives/all_registered.hpp"

#include "collectives/blocks.hpp"

namespace rankwise {

namespace {

constexpr uint64_t kNotRegistered = 0;  // no buffer has offset 0, which is the segment's header
constexpr uint64_t kNotNeeded = ~uint64_t(0);

}  // namespace

AllRegistered::AllRegistered(Transport& t, const void* memory, size_t bytes)
    : t_(t), own_(static_cast<uint8_t*>(const_cast<void*>(memory))) {
    const uint64_t mine = !memory || !bytes                   ? kNotNeeded
                          : t.segment.contains(memory, bytes) ? t.segment.offset_of(memory)
                                                              : kNotRegistered;
    step_ = t.ring.post(&mine, sizeof mine);
    if (mine == kNotRegistered) return;
    t.ring.await_all(step_);
    agreed_ = true;
    for (int p = 0; p < t.n; ++p) {
        const uint64_t offset = p == t.rank ? kNotNeeded : offset_of(p);
        if (offset == kNotRegistered) agreed_ = false;
        else if (offset != kNotNeeded) t.memory.in_segment(p, offset, bytes);
    }
}

namespace collectives {

void reduce_registered(Transport& t, const AllRegistered& data, size_t bytes, size_t item, ReduceKernel kernel,
                       int root) {
    StepRing& s = t.ring;
    PeerWrites writes(t);
    const bool receives = root < 0 || s.rank == root;
    const Shares shares(bytes, s.n);
    const size_t end = shares.end(s.rank);
    for (size_t at = shares.begin(s.rank), next_check = 0; at < end; at += kCacheBlock) {
        if (at >= next_check) {
            writes.check();
            next_check = at + kBytesPerCheck;
        }
        const size_t length = std::min(kCacheBlock, end - at);
        const void* sources[kMaxRanks];
        for (int r = 0; r < s.n; ++r) sources[r] = data.of(r) + at;
        uint8_t* result = receives ? data.of(s.rank) + at : t.scratch();
        kernel(result, sources, s.n, length / item, s.n);
        for (int i = 1; i < s.n; ++i) {
            const int to = (s.rank + i) % s.n;
            // Its lines were read a moment ago: non-temporal stores would be slower, at any size.
            if (root < 0 || to == root) std::memcpy(data.of(to) + at, result, length);
        }
    }
    writes.finish_all();
}

void reduce_block_registered(Transport& t, const AllRegistered& send, uint8_t* recv, size_t offset, size_t mine,
                             size_t item, ReduceKernel kernel) {
    StepRing& s = t.ring;
    for (size_t at = 0; at < mine; at += kBytesPerCheck) {
        t.memory.check();
        const size_t length = std::min(kBytesPerCheck, mine - at);
        const void* sources[kMaxRanks];
        for (int r = 0; r < s.n; ++r) sources[r] = send.of(r) + offset + at;
        kernel(recv + at, sources, s.n, length / item, s.n);
    }
    s.await_all(s.post());
}

}  // namespace collectives
}  // namespace rankwise
