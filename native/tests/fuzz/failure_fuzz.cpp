// A group has failed, and what its ranks say of that in shared memory, of which the error's text is made, may have been
// overwritten: the error is one of a failed group.
#include "failure/timeout_report.hpp"
#include "input.hpp"
#include "two_ranks.hpp"

using namespace rankwise;

namespace {

struct Ranks : TwoRanks {
    uint64_t report;
    std::vector<TraceEntry*> traces{trace_of(*segment, 0), trace_of(*segment, 1)};
    std::vector<uint8_t> records = copy(&segment->record(0), 2 * sizeof(RankRecord)),
                         first_trace = copy(traces[0], kOverwritten), second_trace = copy(traces[1], kOverwritten);
    static constexpr size_t kOverwritten = 8 * sizeof(TraceEntry);

    static std::vector<uint8_t> copy(const void* memory, size_t bytes) {
        const auto* const begin = static_cast<const uint8_t*>(memory);
        return {begin, begin + bytes};
    }
    // So that an input does the same after any other one.
    void reset() {
        std::memcpy(static_cast<void*>(&segment->record(0)), records.data(), records.size());
        std::memcpy(static_cast<void*>(traces[0]), first_trace.data(), kOverwritten);
        std::memcpy(static_cast<void*>(traces[1]), second_trace.data(), kOverwritten);
        for (int rank = 0; rank < 2; ++rank)
            segment->record(rank).exit_status = uint64_t(1) << 32 | 9;  // known at once
    }
};

std::span<uint8_t> bytes_of(void* memory, size_t bytes) { return {static_cast<uint8_t*>(memory), bytes}; }

// A call as a rank announces it, and what follows from it.
void announce(Input& input, PeerSlot& peer) {
    StepHeader& header = peer.headers[input.below(4)];
    header.set_call(input.below(3), {input.take<uint64_t>(), input.below(3)});
    header.posted = input.below(8);
    peer.calls = input.below(8);
    LastDescription& last = peer.last_description;
    last.number = input.below(8);
    last.operation = uint32_t(input.below(256));
    last.dims = uint32_t(input.below(12));
}

void overwrite(Input& input, Ranks& ranks, GroupSegment& group, std::span<uint8_t> report) {
    const size_t rank = input.below(2);
    PeerSlot& peer = group.peers[rank];
    switch (input.below(8)) {
    case 0: input.overwrite(bytes_of(&peer, sizeof peer)); break;
    case 1: input.overwrite(bytes_of(&peer.has_left, sizeof peer - offsetof(PeerSlot, has_left))); break;
    case 2: announce(input, peer); break;
    case 3: input.overwrite(bytes_of(ranks.traces[rank], Ranks::kOverwritten)); break;
    case 4: ranks.segment->record(int(rank)).exit_status = uint64_t(1) << 32 | input.take<uint32_t>(); break;
    case 5: input.overwrite(report.first(512)); break;
    case 6: peer.report = input.below(2) ? ranks.segment->offset_of(report.data()) : input.take<uint64_t>(); break;
    case 7: peer.site.state = CallSite::State(input.below(4)); break;
    }
}

void call(Comm& comm, size_t which) {
    int64_t x = 0;
    switch (which) {
    case 0: comm.barrier(); break;
    case 1: comm.all_reduce(&x, 1, DType::I64, ReduceOp::SUM); break;
    case 2: comm.messages().send_now({&x, 1, DType::I64, 1, 0}); break;
    case 3: comm.messages().recv_now({&x, 1, DType::I64, 1, 0}); break;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static Ranks ranks;
    ranks.reset();
    Input input(data, size);
    GroupOfTwo pair(ranks);
    GroupSegment& group = pair.group;
    const auto before = Ranks::copy(&group, group.staging);
    TimeoutReport report{"rank 1 did not come", {1}, {{0, "in barrier #1 for 2.5 s"}, {1, "for 2.6 s"}}, {{1, " "}}};
    const uint64_t text = write_report(*ranks.segment, report);
    for (int rank = 0; rank < 2; ++rank) {
        group.peers[rank].site.state = CallSite::State::Complete;  // else each mismatch would wait for it
        group.peers[rank].report = text;
    }
    const Cause cause = Cause(1 + input.below(3));
    const size_t which = input.below(4), by = input.below(2);
    const std::string how = input.below(2) ? input.text() : "has failed";
    const uint64_t raw = input.below(4) ? 0 : input.take<uint64_t>();
    while (!input.ended()) overwrite(input, ranks, group, bytes_of(ranks.segment->at(text), 4 * KiB));
    if (input.below(8)) group.peers[by].explained = 0;  // else it waits for a while
    group.failure_record = raw;
    fail_group(group, cause, int(by), input.take<uint8_t>(), how);
    try {
        call(*pair.comms[0], which);
        __builtin_trap();  // a failed group fails every call
    } catch (const PeerLost&) {
    } catch (const Mismatch&) {
    } catch (const TimedOut&) {
    }
    std::memcpy(static_cast<void*>(&group), before.data(), before.size());  // so that it can be released
    ranks.segment->heap().release(text);
    return 0;
}
