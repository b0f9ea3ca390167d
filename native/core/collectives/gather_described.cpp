// Gather of parts whose sizes only the ranks themselves know.
//
// The slot header carries the size, and with it a short part, or the slot does; a longer part follows as a message. So
// a rank with a short part waits for no other.
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

// Receives of long parts, which end with this.
class LongParts {
public:
    LongParts(Messages& messages, const CallOptions& options) : messages_(messages), options_(options) {}
    ~LongParts() {
        for (const auto& each : coming_) messages_.cancel(each);  // does nothing to a complete one
    }
    void receive(uint8_t* to, uint64_t bytes, int from) {
        coming_.push_back(messages_.recv(to, bytes, DType::U8, from, kPartTag, options_));
    }
    void wait() {
        for (const auto& each : coming_) each->wait({}, options_);
    }

private:
    Messages& messages_;
    const CallOptions& options_;
    std::vector<std::shared_ptr<Request>> coming_;
};

}  // namespace

void gather_described(Transport& t, Messages& messages, const uint8_t* part, size_t bytes, const PartOf& part_of,
                      int root, const CallOptions& options) {
    StepRing& s = t.ring;
    if (s.rank != root) return send_part(s, messages, part, bytes, root, options);
    const uint64_t position = s.reserve(tuning::kShortPart), step = s.post();
    s.await_senders(step);
    LongParts longer(messages, options);
    for (int from = 0; from < s.n; ++from) {
        if (from == root) {
            uint8_t* const to = part_of(from, bytes);
            if (bytes && to != part) std::memmove(to, part, bytes);
            continue;
        }
        PartHeader header;
        std::memcpy(&header, s.payload(from, step), sizeof header);
        uint8_t* const to = part_of(from, header.bytes);
        if (header.bytes > tuning::kShortPart) longer.receive(to, header.bytes, from);
        else if (header.bytes) std::memcpy(to, header.has_part() ? header.data : s.slot(from, position), header.bytes);
    }
    s.release(position);
    longer.wait();
}

}  // namespace rankwise::collectives
