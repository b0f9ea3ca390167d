// Reading the traces of a segment's ranks, and writing that of a rank whose operations another library does.
#include "trace/trace.hpp"

#include <numeric>

#include "bindings.hpp"
#include "failure/stacks.hpp"

using namespace rankwise;

namespace {

int checked(const SegmentView& v, int rank) { return checked_number("rank", rank, v.world_size()); }

class TraceWriter {
public:
    TraceWriter(int segment_fd, int rank)
        : segment_(Segment::attach(segment_fd)),
          tracer_(*segment_, checked_number("rank", rank, segment_->world_size())) {
        segment_->record(rank).pid = QualifiedPid::own();
    }

    TraceEntry* begin(uint64_t what, uint32_t group, int tag, uint64_t sequence, uint64_t bytes, uint64_t at) {
        if (fork_.is_child()) return nullptr;
        tracer_.moved(bytes);
        return tracer_.begin(what, group, tag, sequence, bytes, at);
    }
    void end(TraceEntry* entry, uint64_t waited, bool failed) {
        tracer_.waited(waited);
        tracer_.end(entry, ticks(), waited, failed ? kFailed : 0);
    }
    uint32_t new_group() { return segment_->new_group(); }
    void name_group(uint32_t number, const std::string& name) { segment_->name_group(number, name); }

private:
    std::shared_ptr<Segment> segment_;
    Tracer tracer_;
    const ForkMark fork_;
};

// An operation in the trace, which ends with this object at the latest.
class WrittenOperation {
public:
    WrittenOperation(std::shared_ptr<TraceWriter> writer, TraceEntry* entry, uint64_t began)
        : writer_(std::move(writer)), entry_(entry), waits_since_(began) {}
    WrittenOperation(const WrittenOperation&) = delete;
    ~WrittenOperation() { end(); }
    void wait() {
        if (!entry_ || waits_since_) return;
        entry_->clear(kBackground);
        waits_since_ = ticks();
    }
    void matched(int peer, int tag) {
        if (entry_) entry_->set_peer(peer, tag);
    }
    void end(bool failed = false) {
        if (TraceEntry* entry = std::exchange(entry_, nullptr))
            writer_->end(entry, waits_since_ ? ticks() - waits_since_ : 0, failed);
    }

private:
    std::shared_ptr<TraceWriter> writer_;
    TraceEntry* entry_;     // null where there is no room, in a forked child, and once it has ended
    uint64_t waits_since_;  // 0 while nobody waits for it
};

std::shared_ptr<WrittenOperation> begin(std::shared_ptr<TraceWriter> writer, const std::string& operation,
                                        uint32_t group, uint64_t sequence, uint64_t bytes, int dtype, int op, int peer,
                                        int tag, bool background) {
    const uint64_t what = make_call(op_named(operation), DType(dtype), ReduceOp(op), peer).what |
                          (background ? kBackground : 0),
                   now = ticks();
    TraceEntry* entry = writer->begin(what, group, tag, sequence, bytes, now);
    return std::make_shared<WrittenOperation>(std::move(writer), entry, background ? 0 : now);
}

}  // namespace

void bind_trace(nb::module_& m) {
    nb::class_<Operation>(m, "Operation", "One operation of a rank.")
        .def_ro("number", &Operation::number)
        .def_prop_ro("name", [](const Operation& o) { return name(o.kind); })
        .def_ro("group", &Operation::group)
        .def_ro("group_name", &Operation::group_name)
        .def_ro("sequence", &Operation::sequence)
        .def_prop_ro(
            "dtype",
            [](const Operation& o) { return o.dtype ? std::optional<std::string>(name(*o.dtype)) : std::nullopt; })
        .def_prop_ro("op",
                     [](const Operation& o) { return o.op ? std::optional<std::string>(name(*o.op)) : std::nullopt; })
        .def_ro("root", &Operation::root)
        .def_ro("peer", &Operation::peer)
        .def_ro("tag", &Operation::tag)
        .def_ro("bytes", &Operation::bytes)
        .def_ro("begin", &Operation::begin)
        .def_ro("end", &Operation::end)
        .def_ro("waited", &Operation::waited)
        .def_ro("failed", &Operation::failed)
        .def_ro("background", &Operation::background)
        .def_ro("part", &Operation::part)
        .def("__repr__",
             [](const Operation& o) { return "<Operation " + to_string(o, 0) + (o.end ? ">" : ", in progress>"); });
    nb::class_<RankState>(m, "RankState", "What a segment records about one rank.")
        .def_prop_ro("pid", [](const RankState& s) { return s.pid.number; })
        .def_prop_ro("pid_namespace", [](const RankState& s) { return s.pid.pid_namespace; })
        .def_ro("joined", &RankState::joined)
        .def_ro("ended", &RankState::ended)
        .def_ro("exit_status", &RankState::exit_status)
        .def_ro("operations", &RankState::operations)
        .def_ro("bytes", &RankState::bytes)
        .def_ro("waited", &RankState::waited)
        .def_prop_ro("operation", [](const RankState& s) { return s.where.operation; })
        .def_prop_ro("inside", [](const RankState& s) { return s.where.inside; })
        .def_prop_ro("since", [](const RankState& s) { return s.where.since; })
        .def_prop_ro("description", [](const RankState& s) {
            return s.joined ? to_string(s.where, 0) : std::string("has not joined");
        });
    nb::class_<SegmentView>(m, "SegmentView", "A job's segment as seen from outside its ranks, mapped read-only.")
        .def(nb::init<int>(), nb::arg("fd"))
        .def_prop_ro("world_size", &SegmentView::world_size)
        .def_prop_ro("started", [](const SegmentView& v) { return v.header().started.realtime; })
        .def(
            "state", [](const SegmentView& v, int rank) { return rank_state(v, checked(v, rank)); }, nb::arg("rank"))
        .def(
            "operations", [](const SegmentView& v, int rank) { return operations(v, checked(v, rank)); },
            nb::arg("rank"));
    m.def(
        "request_stacks",
        [](int fd) {
            const auto segment = rankwise::Segment::attach(fd);
            std::vector<int> ranks(size_t(segment->world_size()));
            std::iota(ranks.begin(), ranks.end(), 0);
            return by_rank(without_gil([&] { return rankwise::request_stacks(*segment, ranks); }));
        },
        nb::arg("segment_fd"));
    nb::class_<WrittenOperation>(m, "WrittenOperation", "An operation in progress, in the trace of a TraceWriter.")
        .def("wait", &WrittenOperation::wait)
        .def("matched", &WrittenOperation::matched, nb::arg("peer"), nb::arg("tag"))
        .def("end", &WrittenOperation::end, nb::arg("failed") = false);
    nb::class_<TraceWriter>(m, "TraceWriter", "Writes the trace of a rank whose operations another library does.")
        .def(nb::init<int, int>(), nb::arg("segment_fd"), nb::arg("rank"))
        .def("begin", &begin, nb::arg("operation"), nb::arg("group"), nb::arg("sequence"), nb::arg("bytes"),
             nb::arg("dtype") = 0, nb::arg("op") = 0, nb::arg("peer") = 0, nb::arg("tag") = 0,
             nb::arg("background") = false)
        .def("new_group", &TraceWriter::new_group)
        .def("name_group", &TraceWriter::name_group, nb::arg("number"), nb::arg("name"));
}
