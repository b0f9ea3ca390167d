// Tests that what a rank's own bug writes over the shared memory ends in an error, and is used neither as an address
// nor as a length.
#include <algorithm>
#include <cstring>
#include <thread>

#include "failure/timeout_report.hpp"
#include "ranks.hpp"

using namespace rankwise;

namespace {

GroupSegment& group_of_all(Comm& c) { return *c.segment()->at<GroupSegment>(c.segment()->header().world_group.load()); }

// A group that is closed frees what belongs to it, but not what the overwritten offsets in its memory point to.
void offsets_of_a_closed_group() {
    const auto segment = ranks::run(2, [](Comm& c) {
        const auto part = c.split(0, c.rank());
        const auto buffer = c.allocate(100000);
        std::memset(buffer->data(), 9, 100000);
        int64_t x = 7;
        if (c.rank() == 0) {
            part->messages().send_now({&x, 1, DType::I64, 1, 0});
            c.segment()->heap().visit(BlockKind::GroupSegment, [&](uint64_t offset) {
                GroupSegment& group = *c.segment()->at<GroupSegment>(offset);
                if (&group == &group_of_all(c)) return;
                group.channel(0, 1) = c.segment()->offset_of(buffer->data());
                group.channel(1, 0) = 7;
                group.peers[0].report = c.segment()->offset_of(buffer->data());
                group.peers[1].report = UINT64_MAX;
            });
        }
        c.barrier();
        part->close(1);
        c.barrier();
        CHECK_EQ(std::count(buffer->data(), buffer->data() + 100000, 9), 100000);
        c.barrier();
    });
    CHECK_EQ(segment->heap().allocated_blocks(), 2u);  // the group of all ranks, and the channel, whose offset is lost
}

// The address of a registered buffer that a rank exposes to its peers.
void address_of_a_buffer(bool reduces) {
    Settings settings;
    settings.forced =
        tuning::parse_forced({{"all_gather", "single_copy"}, {"all_reduce", "registered"}}, settings.backend);
    ranks::run(
        2,
        [&](Comm& c) {
            static std::atomic<uint64_t> address;  // of rank 0's
            const auto in = c.allocate(2 << 20), out = c.allocate(4 << 20);
            if (c.rank() == 0) address = c.segment()->offset_of(in->data());
            c.barrier();
            if (c.rank() == 1) {
                bool changed = false;
                while (!changed) {  // until rank 0 has exposed its buffers; then it waits
                    for (StepHeader& header : group_of_all(c).peers[0].headers) {
                        uint64_t both[2] = {};
                        if (header.posted.load()) std::memcpy(both, header.payload, sizeof both);
                        for (uint64_t& each : both) {
                            if ((each & ~PeerMemory::kInSegment) != address) continue;
                            each += uint64_t(1) << 46;
                            std::memcpy(header.payload, both, sizeof both);
                            changed = true;
                        }
                    }
                }
            }
            try {
                if (reduces) c.all_reduce(in->data(), 1 << 18, DType::I64, ReduceOp::SUM);
                else c.all_gather(in->data(), out->data(), 1 << 18, DType::I64);
                CHECK(false, "rank " << c.rank() << " threw nothing");
            } catch (const PeerLost& e) {
                CHECK(e.rank == 1 && e.how.find("had been overwritten") != std::string::npos, e.what());
            }
        },
        60, settings);
}

void report_of_a_timeout() {
    const auto segment = Segment::create(1);
    CHECK(read_report(*segment, 7).headline.empty());
    CHECK(read_report(*segment, UINT64_MAX).headline.empty());
    TimeoutReport report;
    report.headline = "rank 1 did not come";
    report.missing = {1};
    report.states = {{0, "here"}, {1, "there"}};
    const uint64_t written = write_report(*segment, report);
    CHECK_EQ(read_report(*segment, written).headline, report.headline);
    CHECK(read_report(*segment, written).missing == report.missing &&
          read_report(*segment, written).states == report.states);
    for (size_t at = 0; at < 80; at += 8) {  // each number of it
        const uint64_t offset = write_report(*segment, report);
        std::memset(segment->at(offset) + at, 0xff, 8);
        const TimeoutReport found = read_report(*segment, offset);
        CHECK(found.headline.size() < 100000 && found.missing.size() < 100000 && found.states.size() < 100000);
    }
}

}  // namespace

int main() {
    offsets_of_a_closed_group();
    for (const bool reduces : {false, true}) address_of_a_buffer(reduces);
    report_of_a_timeout();
    return check::result();
}
