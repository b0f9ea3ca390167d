// Compares the calls of the host's ranks.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "watch/watched_calls.hpp"

namespace rankwise {

// How two calls of the same number differ: "operation", "root", ..., or "" if they match as far as both are known.
std::string difference(const WatchedCall& a, const WatchedCall& b);

class CallComparer {
public:
    explicit CallComparer(const Segment& segment) : segment_(segment), read_(size_t(segment.world_size())) {}
    // Reads the calls since the last look. Returns one that another rank's does not match.
    std::optional<WatchedCall> look();
    // As of the last look, the longest-standing last call of a rank in a communicator with deferred calls that another
    // of its ranks has not followed.
    std::optional<WatchedCall> unfollowed() const;

private:
    const Segment& segment_;
    std::vector<uint64_t> read_;                                   // by rank: the last serial
    std::map<std::pair<uint64_t, uint64_t>, WatchedCall> firsts_;  // by communicator and number: the first rank's call
    std::map<uint64_t, std::map<int, WatchedCall>> deferred_;      // by communicator and rank: the last call
};

// The calls of all ranks with the number of this one in its communicator, a line each; those that differ from the first
// one are marked.
std::string list_calls(const Segment& segment, const CallNames& names, const WatchedCall& found);

}  // namespace rankwise
