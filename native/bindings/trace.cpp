// Reading the traces of a segment's ranks.
#include "trace/trace.hpp"

#include "bindings.hpp"

using namespace rankwise;

namespace {

void check_rank(const SegmentView& v, int rank) {
    if (rank < 0 || rank >= v.header().world_size)
        throw BadArgument("rank: " + std::to_string(rank) + " given, expected 0 to " + std::to_string(v.header().world_size - 1));
}

const RankRecord& record(const SegmentView& v, int rank) {
    check_rank(v, rank);
    return v.header().ranks[rank];
}

struct RankState {
    int pid;
    bool joined, exited;
    std::optional<int> exit_status;
    uint64_t operations, bytes;
    int64_t waited;
    Whereabouts where;
};

RankState state(const SegmentView& v, int rank) {
    const RankRecord& r = record(v, rank);
    const int32_t status = r.exit_status.load();
    return {r.pid.load(), r.joined.load() != 0, r.exited.load() != 0, status == kStatusUnknown ? std::nullopt : std::optional(int(status)),
            r.operations.load(), r.bytes.load(), ns_of_ticks(v.header(), r.waited.load()), whereabouts(v.header(), rank)};
}

}  // namespace

void bind_trace(nb::module_& m) {
    nb::class_<Operation>(m, "Operation", "One operation of a rank.")
        .def_ro("number", &Operation::number)
        .def_prop_ro("name", [](const Operation& o) { return name(o.kind); })
        .def_ro("group", &Operation::group)
        .def_ro("sequence", &Operation::sequence)
        .def_prop_ro("dtype", [](const Operation& o) { return o.dtype ? std::optional<std::string>(name(*o.dtype)) : std::nullopt; })
        .def_prop_ro("op", [](const Operation& o) { return o.op ? std::optional<std::string>(name(*o.op)) : std::nullopt; })
        .def_ro("root", &Operation::root)
        .def_ro("peer", &Operation::peer)
        .def_ro("tag", &Operation::tag)
        .def_ro("bytes", &Operation::bytes)
        .def_ro("begin", &Operation::begin)
        .def_ro("end", &Operation::end)
        .def_ro("waited", &Operation::waited)
        .def_ro("failed", &Operation::failed)
        .def_ro("background", &Operation::background)
        .def("__repr__", [](const Operation& o) { return "<Operation " + to_string(o, 0) + (o.end ? ">" : ", in progress>"); });
    nb::class_<RankState>(m, "RankState", "What a segment records about one rank.")
        .def_ro("pid", &RankState::pid)
        .def_ro("joined", &RankState::joined)
        .def_ro("exited", &RankState::exited)
        .def_ro("exit_status", &RankState::exit_status)
        .def_ro("operations", &RankState::operations)
        .def_ro("bytes", &RankState::bytes)
        .def_ro("waited", &RankState::waited)
        .def_prop_ro("operation", [](const RankState& s) { return s.where.operation; })
        .def_prop_ro("inside", [](const RankState& s) { return s.where.inside; })
        .def_prop_ro("since", [](const RankState& s) { return s.where.since; })
        .def_prop_ro("description", [](const RankState& s) { return s.joined ? to_string(s.where, 0) : std::string("has not joined"); });
    nb::class_<SegmentView>(m, "SegmentView", "A job's segment as seen from outside its ranks, mapped read-only.")
        .def(nb::init<int>(), nb::arg("fd"))
        .def_prop_ro("world_size", [](const SegmentView& v) { return v.header().world_size; })
        .def_prop_ro("started", [](const SegmentView& v) { return v.header().started.realtime; })
        .def("state", &state, nb::arg("rank"))
        .def(
            "operations",
            [](const SegmentView& v, int rank) {
                check_rank(v, rank);
                return operations(v.header(), rank);
            },
            nb::arg("rank"));
}
