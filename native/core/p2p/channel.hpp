// The channel for messages from one rank to another: a ring of bytes, and where both copy a large message.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/copy.hpp"
#include "kernels/non_temporal.hpp"
#include "memory/group_segment.hpp"

namespace rankwise {

// An offered message that both ranks copy, piece by piece, each from one end, until they meet.
struct CopyJob {
    // Odd while the sender may begin to copy. It grows with each message, so the sender notices if another one has
    // taken the place of the one that it has read about.
    alignas(kCacheLine) std::atomic<uint64_t> state;
    // Written by the receiver before that.
    std::atomic<uint64_t> to;                               // where the data goes
    std::atomic<int32_t> offer;                             // its number
    alignas(kCacheLine) std::atomic<uint64_t> begun, done;  // number of pieces
    std::atomic<uint32_t> writing;                          // the sender is copying a piece, or about to

    static bool open(uint64_t state) { return state & 1; }
    // Sets `writing` while it lives.
    struct Writing {
        CopyJob& job;
        explicit Writing(CopyJob& job) : job(job) { job.writing.store(1); }
        ~Writing() { job.writing.store(0); }
        Writing(const Writing&) = delete;
    };
};

// What follows a header in the ring.
enum class Form : uint8_t {
    Message,               // the message's data
    Offered,               // where the sender keeps the data (OfferBody): the receiver copies it, or requests it
    OfferedSynchronously,  // the same, of a synchronous send: only once a receive has matched the message
    Fetched,               // the data of an offered message; tag is the offer's number, here and below
    Fetch,                 // nothing: the receiver requests the data
    Copied,                // nothing: the receiver has copied it, or has found that it was cancelled
};

inline constexpr size_t kMostStretches = 64;  // of an offered message that the receiver copies

// Precedes each message in the ring.
struct MessageHeader {
    uint64_t bytes, count;
    int32_t tag;
    uint8_t dtype;
    bool object;  // the bytes are an encoded object, whose dtype is U8
    Form form;
    uint8_t stretches;  // of an offered message: how many follow
    uint64_t stamp;     // Channel::stamp once the header, and all of a short message, have arrived

    static MessageHeader of(uint64_t count, DType dtype, int32_t tag, bool object = false) {
        return {count * itemsize(dtype), count, tag, uint8_t(dtype), object, Form::Message, 0, 0};
    }
    static MessageHeader about_offer(Form form, int number, uint64_t bytes = 0) {
        return {bytes, bytes, number, uint8_t(DType::U8), false, form, 0, 0};
    }
    // Whether a rank can have written it.
    bool valid() const {
        return dtype < kDTypes && form <= Form::Copied && count <= UINT64_MAX / 16 && stretches <= kMostStretches &&
               bytes == count * itemsize(DType(dtype)) && (form < Form::Fetch || !bytes);
    }
};

// Follows the header of an offered message, and is followed by its stretches.
struct OfferBody {
    int32_t number;
    int32_t slot;  // in Channel::offers; -1 if the receiver cannot copy the data
    struct Stretch {
        uint64_t address, bytes;
    };
};

// Who uses the memory of an offered message.
enum class OfferStage : uint32_t { Free, Offered, Copying, Copied, Cancelled };

// `written` and `read` count bytes; their difference is in the ring.
struct Channel {
    uint64_t capacity;
    uint64_t first_stamp;  // random
    CopyJob job;
    static constexpr int kOffers = 256;
    alignas(kCacheLine) std::atomic<OfferStage> offers[kOffers];
    alignas(kCacheLine) std::atomic<uint64_t> written;  // changed by the sender
    alignas(kCacheLine) std::atomic<uint64_t> read;     // changed by the receiver
    alignas(kCacheLine) uint8_t ring[];

    // Whether the sender is copying into the receiver's memory, or about to.
    bool sender_writes() const { return job.writing.load(); }
    // The capacity is a power of two: a division would take longer than a short message's copy.
    uint64_t place(uint64_t at) const { return at & (capacity - 1); }
    // Messages start at multiples of kCacheLine. If a stray write has changed `at`, the header is still in the ring.
    uint64_t place_of_header(uint64_t at) const { return at & (capacity - kCacheLine); }
    static uint64_t pad_of(uint64_t end) { return (kCacheLine - end % kCacheLine) % kCacheLine; }
    uint64_t room() const { return capacity - (written.load(std::memory_order_relaxed) - read.load()); }
    uint64_t unread() const {
        const auto bytes = int64_t(written.load() - read.load(std::memory_order_relaxed));
        return uint64_t(std::max(bytes, int64_t(0)));  // a short message may be read before `written` counts it
    }
    // Marks a message as arrived in the cache line where it begins, so a receiver need poll only that line. Other data
    // has the same value once in 2^64 cases.
    uint64_t stamp(uint64_t at) const { return first_stamp + at; }
    std::atomic_ref<uint64_t> stamp_at(uint64_t at) {
        return std::atomic_ref(reinterpret_cast<MessageHeader*>(ring + place_of_header(at))->stamp);
    }
    void put_header(uint64_t at, const MessageHeader& h) {
        std::memcpy(ring + place_of_header(at), &h, offsetof(MessageHeader, stamp));
    }
    MessageHeader header(uint64_t at) const {
        MessageHeader h;
        std::memcpy(&h, ring + place_of_header(at), offsetof(MessageHeader, stamp));
        return h;
    }
    // The bytes of the ring that a message of `bytes` occupies, with its header and padding.
    static uint64_t whole_of(uint64_t at, uint64_t bytes) {
        return sizeof(MessageHeader) + bytes + pad_of(at + sizeof(MessageHeader) + bytes);
    }
    void put(uint64_t at, const void* data, uint64_t bytes) {
        const uint64_t start = place(at), head = std::min(bytes, capacity - start);
        copy_for_peers(ring + start, data, head);
        copy_for_peers(ring, static_cast<const uint8_t*>(data) + head, bytes - head);
    }
    void get(uint64_t at, void* data, uint64_t bytes) const {
        const uint64_t start = place(at), head = std::min(bytes, capacity - start);
        copy_bytes(data, ring + start, head);
        copy_bytes(static_cast<uint8_t*>(data) + head, ring, bytes - head);
    }
};

}  // namespace rankwise
