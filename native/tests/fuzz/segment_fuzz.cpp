// Whoever attaches a segment finds anything in it: `rankwise status --stacks` the memory of another user's job, a rank
// what a stray write has left. What is read and written then lies within the segment.
#include <sys/stat.h>

#include "failure/stacks.hpp"
#include "failure/timeout_report.hpp"
#include "memory/group_segment.hpp"
#include "segment_copy.hpp"

using namespace rankwise;

namespace {

constexpr int kRanks = 2;

struct Original {
    std::shared_ptr<Segment> segment = [] {
        auto made = small_segment(kRanks, 4 * MiB);
        for (int rank = 0; rank < kRanks; ++rank) {
            made->record(rank).pid = QualifiedPid::own();
            made->record(rank).joined = 1;
            open_doorbell(*made, rank).release();
        }
        return made;
    }();
    uint64_t heap = SegmentLayout(kRanks).heap, group = segment->header().world_group, text = [this] {
        TimeoutReport report;
        report.headline = "rank 1 did not come";
        report.missing = {1};
        report.states = {{0, "in all_reduce #1 for 2.5 s"}, {1, "in all_reduce #1 for 2.6 s"}};
        return write_report(*segment, report);
    }();
    std::vector<SegmentCopy::Part> parts{
        {0, heap + 4 * KiB}, {group, group + segment->at<GroupSegment>(group)->staging}, {text, text + 4 * KiB}};
};

// Only this process is asked for its stacks: an input names no other one.
void protect_others(SegmentHeader& header, int rank) {
    QualifiedPid pid = header.ranks[rank].pid.load();
    if (pid.number > 0 && pid.number != getpid()) pid.number = getpid();
    header.ranks[rank].pid = pid;
}

void look(const Segment& segment, uint64_t report) {
    const Heap& heap = segment.heap();
    heap.allocated_blocks();
    for (int kind = 0; kind < 12; ++kind)
        heap.visit(BlockKind(kind), [&](uint64_t offset) { heap.block_bytes(offset, BlockKind(kind)); });
    const TimeoutReport found = read_report(segment, report);
    list_states(found.states);
    list_ranks(found.missing);
    if (GroupSegment* const group = find_group(segment, segment.header().world_group)) {
        group->failure();
        group->asleep();
        for (int rank = 0; rank < group->nranks; ++rank) read_report(segment, group->peers[rank].report.load());
    }
}

void change(Segment& segment, Input& what) {
    const int rank = int(what.below(size_t(segment.world_size())));
    switch (what.below(5)) {
    case 0: segment.mark_ended(rank, what.take<int32_t>(), what.take<uint8_t>()); break;
    case 1: segment.heap().free_buffers_of_ended(); break;
    case 2: segment.heap().release(segment.heap().allocate(what.take<uint32_t>() % MiB, BlockKind::Text)); break;
    case 3: release_group_segment(segment, create_group_segment(segment, {{rank, 0}})); break;
    case 4: segment.name_group(what.take<uint32_t>(), what.text()); break;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Original original;
    static SegmentCopy copy(*original.segment, original.parts);
    copy.reset();
    Input input(data, size);
    size_t bytes = copy.whole();
    const size_t rank = input.below(kRanks), last = input.below(4);
    const uint64_t report = last ? original.text : input.take<uint64_t>();
    while (!input.ended()) {
        switch (input.below(9)) {
        case 0: bytes = input.below(copy.whole()); break;
        case 1: copy.header().world_size = input.take<int32_t>(); break;
        case 2: copy.header().bytes = bytes; break;
        case 3: input.overwrite(copy.stretch(0, offsetof(SegmentHeader, group_names))); break;
        case 4:
            input.overwrite(
                copy.stretch(offsetof(SegmentHeader, ranks) + rank * sizeof(RankRecord), sizeof(RankRecord)));
            break;
        case 5: input.overwrite(copy.stretch(original.heap, 64 * 16)); break;
        case 6: input.overwrite(copy.stretch(original.group, offsetof(GroupSegment, peers) + 256)); break;
        case 7:
            input.overwrite(
                copy.stretch(original.group + sizeof(GroupSegment) + rank * sizeof(PeerSlot), sizeof(PeerSlot)));
            break;
        case 8: input.overwrite(copy.stretch(original.text, 512)); break;
        }
    }
    for (int r = 0; r < kRanks; ++r) protect_others(copy.header(), r);
    const Descriptor fd(copy.file(bytes));
    const Guards guards(bytes);
    try {
        const auto segment = Segment::attach(fd.get());
        std::vector<int> ranks;
        for (int r = 0; r < std::min(segment->world_size(), 4); ++r) ranks.push_back(r);
        if (segment->world_size() <= kRanks) request_stacks(*segment, ranks, std::chrono::seconds(0));
        look(*segment, report);
        Input what(data, size);
        for (int i = 0; i < 3; ++i) change(*segment, what);
        look(*segment, report);
    } catch (const BadArgument&) {
    } catch (const OutOfMemory&) {
    }
    return 0;
}
