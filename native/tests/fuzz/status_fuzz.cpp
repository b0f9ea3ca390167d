// `rankwise status` reads the memory of any job on this host, root that of other users: whatever is in it, what is
// shown comes from that memory alone.
#include "failure/deadlock.hpp"
#include "segment_copy.hpp"
#include "trace/trace.hpp"

using namespace rankwise;

namespace {

constexpr int kRanks = 2;
constexpr size_t kLargest = 80 * MiB;  // a file that has room for the traces of any number of ranks

SegmentCopy traced_segment() {
    const auto segment = small_segment(kRanks, 4 * MiB);
    for (int rank = 0; rank < kRanks; ++rank) {
        segment->record(rank).joined = 1;
        Tracer tracer(*segment, rank);
        tracer.end(tracer.begin(uint64_t(Op::Join), 0, 0, 0, 0, 1), 2, 1);
        tracer.begin(make_call(Op::AllReduce, DType::F32, ReduceOp::SUM).what, 0, 0, 1, 12, 3);
        tracer.begin(make_call(Op::Recv, DType::U8, {}, 1 - rank).what | kBackground, 1, 5, 0, 12, 4);
    }
    segment->name_group(1, "name");
    return {*segment, {{0, SegmentLayout(kRanks).heap}}};
}

void look(const SegmentView& view, int rank) {
    const RankState now = rank_state(view, rank);
    to_string(now.where, 0);
    for (const Operation& o : operations(view, rank)) to_string(o, o.group + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static SegmentCopy segment = traced_segment();
    segment.reset();
    Input input(data, size);
    const SegmentLayout layout(kRanks);
    size_t bytes = segment.whole();
    while (!input.ended()) {
        switch (const size_t rank = input.below(kRanks); input.below(6)) {
        case 0: bytes = input.below(kLargest); break;
        case 1: segment.header().world_size = input.take<int32_t>(); break;
        case 2: input.overwrite(segment.stretch(0, offsetof(SegmentHeader, group_names))); break;
        case 3: input.overwrite(segment.stretch(offsetof(SegmentHeader, group_names), 4 * sizeof(GroupName))); break;
        case 4:
            input.overwrite(
                segment.stretch(offsetof(SegmentHeader, ranks) + rank * sizeof(RankRecord), sizeof(RankRecord)));
            break;
        default:
            input.overwrite(
                segment.stretch(layout.traces + rank * kTraced * sizeof(TraceEntry), 8 * sizeof(TraceEntry)));
        }
    }
    const Descriptor fd(segment.file(bytes));
    const Guards guards(bytes);
    try {
        const SegmentView view(fd.get());
        for (const int rank : {0, 1, view.world_size() - 1})
            if (rank < view.world_size()) look(view, rank);
    } catch (const BadArgument&) {
    }
    return 0;
}
