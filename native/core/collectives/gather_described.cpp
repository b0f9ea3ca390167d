// Gather of parts whose sizes only the ranks themselves know.
//
// The slot header carries the size. A very short part travels in the header too, a short one in the slot, a long one as
// a message. So a rank with a short part waits only when it is several steps ahead.
#include "collectives/collectives.hpp"
#include "p2p/messages.hpp"

namespace rankwise::collectives {

namespace {

struct PartHeader {
    uint64_t bytes;
    uint8_t data[kInline - sizeof(uint64_t)];  // the part, if it fits

    bool has_part() const { return bytes <= sizeof data; }
    size_t used() const { return sizeof bytes + (has_part() ? bytes : 0); }
};
static_assert(sizeof(PartHeader) == kInline);

void send_part(StepRing& s, Messages& messages, const uint8_t* part, size_t bytes, int root,
               const CallOptions& options) {
    PartHeader header{bytes, {}};
    const uint64_t position = s.reserve(tuning::kShortPart);
    if (header.has_part()) {
        if (bytes) std::memcpy(header.data, part, bytes);
    } else if (bytes <= tuning::kShortPart) {
        s.await_free(position);
        std::memcpy(s.slot(s.rank, position), part, bytes);
    }
    s.post(&header, header.used());
    s.release(position);
    if (bytes > tuning::kShortPart) messages.send_now(part, bytes, DType::U8, root, kPartTag, options);
}

// The long parts that are still to come: from whom, and the memory for each.
struct LongPart {
    int from;
    uint8_t* to;
    uint64_t bytes;
};

// All are received at a time, while root copies its own part.
template <class Own>
void receive_long_parts(Messages& messages, const std::vector<LongPart>& parts, const CallOptions& options,
                        const Own& copy_own) {
    std::vector<std::shared_ptr<Request>> coming;
    try {
        for (const LongPart& each : parts)
            coming.push_back(messages.recv(each.to, each.bytes, DType::U8, each.from, kPartTag, options));
        copy_own();
        for (const auto& each : coming) each->wait({}, options);
    } catch (...) {
        for (const auto& each : coming) messages.cancel(each);  // does nothing to a complete one
        throw;
    }
}

}  // namespace

void gather_described(Transport& t, Messages& messages, const uint8_t* part, size_t bytes, const PartOf& part_of,
                      int root, const CallOptions& options) {
    StepRing& s = t.ring;
    if (s.rank != root) return send_part(s, messages, part, bytes, root, options);
    const uint64_t position = s.reserve(tuning::kShortPart), step = s.post();
    s.await_senders(step);
    std::vector<LongPart> longer;
    uint8_t* own = nullptr;
    for (int from = 0; from < s.n; ++from) {
        if (from == root) {
            own = part_of(from, bytes);
            continue;
        }
        PartHeader header;
        std::memcpy(&header, s.payload(from, step), sizeof header);
        uint8_t* const to = part_of(from, header.bytes);
        if (header.bytes > tuning::kShortPart) longer.push_back({from, to, header.bytes});
        else if (header.bytes) std::memcpy(to, header.has_part() ? header.data : s.slot(from, position), header.bytes);
    }
    s.release(position);
    receive_long_parts(messages, longer, options, [&] {
        if (bytes && own != part) std::memmove(own, part, bytes);
    });
}

}  // namespace rankwise::collectives
