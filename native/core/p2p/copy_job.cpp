// An offered message that both ranks copy, if its sender waits: see CopyJob (channel.hpp).
#include "p2p/messages.hpp"

namespace rankwise {

// The receiver lets the sender help, unless they exchange messages: then each rank copies what it receives. Returns
// whether it may.
bool Messages::share(const Message& message) {
    const uint64_t bytes = message.header.bytes;
    const Outgoing& out = outgoing_[message.from];
    if (!message.receive || bytes <= piece_of_job(bytes) || !out.sends.empty() || !out.offered.empty()) return false;
    CopyJob& job = channel_from(message.from)->job;
    // A sender that is still writing may not know yet that the last message is here.
    if (CopyJob::open(job.state.load()) || job.writing.load() ||
        !transport_.memory.reachable(message.at, bytes, reachable_))
        return false;
    job.to.store(reinterpret_cast<uint64_t>(message.at), std::memory_order_relaxed);
    job.offer.store(message.offer->number, std::memory_order_relaxed);
    job.begun.store(0, std::memory_order_relaxed);
    job.done.store(0, std::memory_order_relaxed);
    job.state.fetch_add(1);
    if (group_.peers[message.from].message_waits.load(std::memory_order_relaxed)) notify(message.from);
    return true;
}

// The receiver copies the pieces that the sender has not begun, from the end. Returns whether all is copied, or nothing
// more will be. A second call copies nothing: the first one ends only when all pieces have begun, or copying fails.
bool Messages::fetch_shared(const Message& message) {
    CopyJob& job = channel_from(message.from)->job;
    const uint64_t bytes = message.header.bytes, piece = piece_of_job(bytes), pieces = (bytes + piece - 1) / piece;
    // `mine` bounds the loop even if a stray write has overwritten the count.
    for (uint64_t mine = 1; mine <= pieces && job.begun.load(std::memory_order_relaxed) < pieces && !group_.failed() &&
                            job.begun.fetch_add(1) < pieces;
         ++mine) {
        const uint64_t at = (pieces - mine) * piece;
        if (!copy_stretches(message, at, std::min(piece, bytes - at))) break;
        job.done.fetch_add(1);
    }
    const bool over = group_.failed() && (!job.writing.load() || transport_.ended(message.from));
    if (!over && (group_.failed() || job.done.load() < pieces)) return false;
    job.state.fetch_add(1);
    return true;
}

namespace {

// Stretches of an offered message, without private memory: a piece that has been counted as begun must be copied.
class IovecList {
public:
    void add(const uint8_t* data, uint64_t bytes) { all_[n_++] = {const_cast<uint8_t*>(data), bytes}; }
    operator std::span<const iovec>() const { return {all_, n_}; }

private:
    iovec all_[kMostStretches];
    size_t n_ = 0;
};

}  // namespace

// Copies some bytes of an offered message; returns whether it has.
bool Messages::copy_stretches(const Message& message, uint64_t at, uint64_t bytes) {
    IovecList there;
    for_stretches(message.offer->stretches, at, bytes,
                  [&](const uint8_t* data, uint64_t here) { there.add(data, here); });
    return transport_.memory.try_copy(message.from, PeerMemory::Direction::Get, message.at + at, there);
}

// The sender copies the pieces that the receiver has not begun, from the beginning, unless it receives messages itself;
// returns whether there were any.
bool Messages::help_to_fetch(Channel& c, int to) {
    CopyJob& job = c.job;
    const uint64_t state = job.state.load();
    if (!CopyJob::open(state) || !receives_.empty()) return false;
    // If the state is still the same, the receiver shares no other message until `writing` is 0.
    const CopyJob::Writing writing(job);
    if (job.state.load() != state) return false;
    const auto found = outgoing_[to].offered.find(job.offer.load(std::memory_order_relaxed));
    if (found == outgoing_[to].offered.end() || found->second->ended()) return false;
    Request& r = *found->second;
    const uint64_t bytes = r.bytes(), piece = piece_of_job(bytes), pieces = (bytes + piece - 1) / piece,
                   there = job.to.load(std::memory_order_relaxed), before = r.sent_;
    while (r.sent_ < bytes && job.begun.load(std::memory_order_relaxed) < pieces && !group_.failed() &&
           job.begun.fetch_add(1) < pieces) {
        const uint64_t at = r.sent_, length = std::min(piece, bytes - at);
        r.sent_ += length;
        IovecList here;
        r.for_stretches(at, length, [&](const uint8_t* data, uint64_t stretch) { here.add(data, stretch); });
        if (!transport_.memory.try_copy(to, PeerMemory::Direction::Put, reinterpret_cast<uint8_t*>(there + at), here))
            break;
        job.done.fetch_add(1);
    }
    if (job.done.load() == pieces) {
        complete(r);  // the receiver's answer will end the offer
        notify(to);
    }
    return r.sent_ > before;
}

}  // namespace rankwise
