// Two ranks in one thread, with a small segment of their own.
#pragma once
#include <thread>

#include "comm.hpp"
#include "segment_copy.hpp"

namespace rankwise {

struct TwoRanks {
    std::shared_ptr<Segment> segment = small_segment(2, 32 * MiB);
    std::shared_ptr<Comm> comms[2];
    TwoRanks() {
        std::thread other([&] { comms[1] = Comm::join(segment, 1, 60, Comm::RunsAs::Thread); });
        comms[0] = Comm::join(segment, 0, 60, Comm::RunsAs::Thread);
        other.join();
    }
};

// A group of these two ranks.
struct GroupOfTwo {
    explicit GroupOfTwo(TwoRanks& ranks)
        : subgroup(ranks.comms[0]->make_subgroup({0, 1})),
          comms{ranks.comms[0]->join_subgroup(subgroup), ranks.comms[1]->join_subgroup(subgroup)},
          group(*ranks.segment->at<GroupSegment>(subgroup)) {}
    GroupOfTwo(const GroupOfTwo&) = delete;
    ~GroupOfTwo() {
        fail_group(group, Cause::PeerLost, 1, 0, "is lost");  // so that nobody waits
        for (const auto& comm : comms) comm->close(0);
    }

    const uint64_t subgroup;
    const std::shared_ptr<Comm> comms[2];
    GroupSegment& group;
};

}  // namespace rankwise
