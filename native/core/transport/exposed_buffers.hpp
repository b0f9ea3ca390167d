// The buffers that the ranks expose to each other in one operation, and their agreement on what memory these are.
//
// In one step each rank announces which memory it exposes. From these headers all ranks learn the same: whether they
// can work in the ranks' own memory, and whether all of that is in the segment.
#pragma once
#include "transport/exposure.hpp"
#include "transport/transport.hpp"

namespace rankwise {

// A buffer of this rank; null or empty if its peers need none.
struct OwnBuffer {
    const void* memory = nullptr;
    size_t bytes = 0;
    bool optional = false;  // the operation also works if it cannot be accessed
};

// The constructor posts a step, and so does await_end.
class ExposedBuffers {
public:
    // Exposes `readable` to get, and `writable` to put. least: the operation needs such memory. Waits for the others,
    // unless this rank lacks it. So all calls have been compared before anything changes.
    ExposedBuffers(Transport& t, Exposure least, const OwnBuffer& readable, const OwnBuffer& writable = {});
    ExposedBuffers(const ExposedBuffers&) = delete;

    // The same on all ranks; None if it is less than the constructor's `least`. Then await_end is not called.
    Exposure exposure() const { return exposure_; }
    // Whether a rank exposes a buffer, and whether that buffer is registered.
    bool readable(int rank) const { return exposes(announced_[rank].readable); }
    bool writable(int rank) const { return exposes(announced_[rank].writable); }
    bool readable_registered(int rank) const { return is_registered(announced_[rank].readable); }
    bool writable_registered(int rank) const { return is_registered(announced_[rank].writable); }
    // A rank's registered readable buffer.
    uint8_t* registered(int rank, size_t bytes) const {
        return memory_.in_segment(rank, announced_[rank].readable, bytes);
    }
    // Copy from a buffer that the peer exposes, or into it.
    void get(int peer, void* dst, size_t offset, size_t bytes) {
        memory_.get(peer, dst, announced_[peer].readable + offset, bytes);
    }
    void put(int peer, const void* src, size_t offset, size_t bytes) {
        memory_.put(peer, src, announced_[peer].writable + offset, bytes);
    }

    // Announces that this rank has finished, and waits until all ranks have. If `root` is a rank, only that one waits
    // for all, and the others wait for it alone.
    void await_end(int root) {
        const uint64_t step = s_.post();
        if (root < 0 || root == s_.rank) s_.await_all(step);
        else s_.await(root, step);
        memory_.set_exposed(false);
    }

private:
    static constexpr uint64_t kUnreachable = 0, kNotNeeded = ~uint64_t(0);  // in place of an address
    static bool exposes(uint64_t address) { return address != kUnreachable && address != kNotNeeded; }
    static bool is_registered(uint64_t address) { return address & PeerMemory::kInSegment; }  // or is not needed
    struct Announced {
        uint64_t readable, writable;
    };
    uint64_t address_of(const OwnBuffer& buffer, Exposure least) const;

    // An operation that ends in an exception must not return while a peer still writes here. A member, because the
    // constructor may throw too, when others have begun to write.
    struct NoWriters {
        PeerMemory& memory;
        ~NoWriters() { memory.fail_and_await_writers(); }
    };

    StepRing& s_;
    PeerMemory& memory_;
    const NoWriters at_the_end_{memory_};
    Exposure exposure_ = Exposure::None;
    Announced announced_[kMaxRanks];  // of each rank
};

}  // namespace rankwise
