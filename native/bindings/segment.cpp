#include <sys/prctl.h>

#include "bindings.hpp"
#include "embedding.hpp"
#include "failure/watcher.hpp"
#include "trace/trace.hpp"

using rankwise::Comm;
using rankwise::Segment;

namespace {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

int checked(const Segment& s, int rank) { return rankwise::checked_number("rank", rank, s.world_size()); }

}  // namespace

void bind_segment(nb::module_& m) {
    nb::class_<Segment>(m, "Segment", "The shared memory of the ranks of one host.")
        .def_static("create", &Segment::create, nb::arg("world_size"), nb::arg("node") = 0, nb::arg("nodes") = 1)
        .def_static("attach", &Segment::attach, nb::arg("fd"))
        .def_prop_ro("fd", &Segment::fd)
        .def_prop_ro("world_size", &Segment::world_size)
        .def_prop_ro("allocated_blocks", [](const Segment& s) { return s.heap().allocated_blocks(); })
        .def(
            "join",
            [](std::shared_ptr<Segment> segment, int rank, double timeout, bool process, const NamePairs& algorithms,
               std::optional<bool> oversubscribed, bool single_copy, const std::string& backend, uint32_t restart,
               bool part, const std::vector<rankwise::tuning::NamedValue>& tuning, uint64_t unexpected_bytes) {
                rankwise::tuning::parse_tuning(tuning);  // throws for a name that does not exist
                const rankwise::Settings settings{rankwise::tuning::parse_forced(algorithms, backend),
                                                  oversubscribed,
                                                  single_copy,
                                                  backend,
                                                  part,
                                                  tuning,
                                                  unexpected_bytes,
                                                  &python()};
                ReleaseGil released;
                return Comm::join(std::move(segment), rank, timeout,
                                  process ? Comm::RunsAs::Process : Comm::RunsAs::Thread, settings, restart);
            },
            nb::arg("rank"), nb::arg("timeout"), nb::arg("process"), nb::arg("algorithms") = NamePairs(),
            nb::arg("oversubscribed").none() = nb::none(), nb::arg("single_copy") = true, nb::arg("backend") = "shm",
            nb::arg("restart") = 0, nb::arg("part") = false,
            nb::arg("tuning") = std::vector<rankwise::tuning::NamedValue>(),
            nb::arg("unexpected_bytes") = rankwise::Settings().unexpected_bytes)
        .def(
            "mark_ended",
            [](Segment& s, int rank, int status, int pid, uint32_t restart) {
                rankwise::QualifiedPid unknown;  // of a rank that never joined
                s.record(checked(s, rank))
                    .pid.compare_exchange_strong(unknown, {pid, rankwise::QualifiedPid::own().pid_namespace});
                s.mark_ended(rank, status, restart);
            },
            nb::arg("rank"), nb::arg("status"), nb::arg("pid"), nb::arg("restart") = 0)
        .def(
            "add_pidfd", [](Segment& s, int rank, int pidfd) { s.add_pidfd(checked(s, rank), pidfd); }, nb::arg("rank"),
            nb::arg("pidfd"))
        .def(
            "give_up", [](Segment& s, int rank) { s.give_up(checked(s, rank)); }, nb::arg("rank"))
        .def("announce_statuses", [](Segment& s) { s.header().statuses_expected = 1; })
        .def("announce_restarts", [](Segment& s) { s.header().restarts_expected = 1; })
        .def(
            "state",
            [](const Segment& s, int rank) {
                const rankwise::Whereabouts where = rankwise::whereabouts(s, checked(s, rank));
                const bool begun = where.inside || where.begun();
                return std::make_tuple(std::string(name(begun ? where.operation->kind : rankwise::Op::None)),
                                       begun ? where.operation->sequence : 0,
                                       begun ? to_string(*where.operation, 0) : "", s.record(rank).pid.load().number,
                                       where.inside);
            },
            nb::arg("rank"))
        .def("lost_rank", [](const Segment& s) -> std::optional<int> {
            std::optional<int> lost;
            // A visited group is not freed, although the ranks may be replacing it by another one.
            s.heap().visit(rankwise::BlockKind::GroupSegment, [&](uint64_t offset) {
                if (offset != s.header().world_group) return;
                const rankwise::GroupSegment* const group = find_group(s, offset);
                const rankwise::Failure f = group ? group->failure() : rankwise::Failure{};
                if (f.cause == rankwise::Cause::PeerLost) lost = f.rank;
            });
            return lost;
        });
    m.def("available_memory", &rankwise::available_memory,
          "Bytes that can still be allocated before the machine or the cgroup runs out of memory.");
    m.def("usable_cores", &rankwise::usable_cores,
          "Cores that this process may use: its affinity, limited by its cgroup's quota.");
    m.def("end_with", &rankwise::end_with, nb::arg("pid"), "End this process when the process `pid` ends.");
    m.def(
        "adopt_orphans", [](bool on) { prctl(PR_SET_CHILD_SUBREAPER, on ? 1UL : 0UL, 0UL, 0UL, 0UL); }, nb::arg("on"),
        "Whether this process adopts its descendants' orphaned processes.");
}
