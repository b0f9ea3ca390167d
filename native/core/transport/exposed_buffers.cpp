#include "transport/exposed_buffers.hpp"

namespace rankwise {

ExposedBuffers::ExposedBuffers(Transport& t, Exposure least, const OwnBuffer& readable, const OwnBuffer& writable)
    : s_(t.steps), memory_(t.memory) {
    Announced& mine = announced_[t.rank];
    mine = {address_of(readable, least), address_of(writable, least)};
    const bool lacks = mine.readable == kUnreachable || mine.writable == kUnreachable;
    memory_.set_exposed(!lacks && exposes(mine.writable));
    const uint64_t step = s_.post(&mine, sizeof mine);
    if (lacks) return;
    s_.await_all(step);
    bool all = true, registered = true;
    for (int r = 0; r < t.n; ++r) {
        if (r != t.rank) std::memcpy(&announced_[r], s_.payload(r, step), sizeof announced_[r]);
        const Announced& theirs = announced_[r];
        all = all && theirs.readable != kUnreachable && theirs.writable != kUnreachable;
        registered = registered && is_registered(theirs.readable) && is_registered(theirs.writable);
    }
    if (all) exposure_ = registered ? Exposure::Registered : Exposure::Private;
    else memory_.set_exposed(false);
}

uint64_t ExposedBuffers::address_of(const OwnBuffer& buffer, Exposure least) const {
    if (!buffer.memory || !buffer.bytes) return kNotNeeded;
    const bool accessible = least == Exposure::Registered ? memory_.is_registered(buffer.memory, buffer.bytes)
                                                          : memory_.reachable(buffer.memory, buffer.bytes) != nullptr;
    if (accessible) return memory_.describe(buffer.memory);
    return buffer.optional ? kNotNeeded : kUnreachable;
}

}  // namespace rankwise
