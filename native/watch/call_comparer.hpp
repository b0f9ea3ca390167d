// Compares the calls of this rank with those of the host's other ranks.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "watch/watched_calls.hpp"

namespace rankwise {

// How two calls of the same number differ: "operation", "root", ..., or "" if they match as far as both are known.
std::string difference(const CallRecord& a, const CallRecord& b);

class CallComparer {
public:
    struct Found {
        uint64_t comm;    // its id
        uint64_t number;  // of the call
        std::string name;
    };
    // with_all: with all other ranks, otherwise with the later ones: every pair is then compared by one of its ranks.
    CallComparer(const Segment& segment, int rank, bool with_all = false)
        : segment_(segment), rank_(rank), with_all_(with_all) {}
    // The first calls since the last look that do not match the calls of another rank.
    std::optional<Found> look();

private:
    std::optional<Found> look(WatchedComm& own, uint64_t id, int other);
    const Segment& segment_;
    const int rank_;
    const bool with_all_;
    std::map<std::pair<uint64_t, int>, uint64_t> compared_;  // by communicator and rank: up to which call
};

// The calls of all ranks with this number in this communicator, a line each; those that differ from the first one are
// marked.
std::string list_calls(const Segment& segment, const CallNames& names, const CallComparer::Found& found);

}  // namespace rankwise
