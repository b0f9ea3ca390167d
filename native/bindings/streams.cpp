#include "embedding.hpp"
#include "stream/events.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

using Release = nb::call_guard<ReleaseGil>;
constexpr double kForever = 1e9;  // seconds

WorkHandle submit(HostStream& stream, nb::callable function) {
    return WorkHandle::of_call(std::move(function), [&](std::function<void()> body) {
        return stream.submit(std::move(body), CodeOf::Program);
    });
}

void sync_stream(HostStream& stream, std::optional<double> timeout) {
    check_timeout(timeout);
    ReleaseGil released;
    stream.sync(timeout.value_or(kForever));
}

// Returns whether all work had run in time, whether the thread has ended, and the works that have failed.
std::tuple<bool, bool, std::vector<WorkHandle>> close_stream(HostStream& stream, double timeout) {
    std::vector<std::shared_ptr<Task>> failed;
    const auto [idle, ended] = without_gil([&] {
        const bool ran = stream.drain(timeout);
        failed = stream.take_failed();
        return std::pair(ran, stream.close(0));
    });
    return {idle, ended, works_of(std::move(failed))};
}

void synchronize(uint64_t event, std::optional<double> timeout) {
    check_timeout(timeout);
    ReleaseGil released;
    events::synchronize(event, timeout.value_or(kForever));
}

struct HostEvents {};

}  // namespace

void bind_streams(nb::module_& m) {
    const nb::lock_self locked;
    const auto nothing = [](const WorkHandle&) { return nb::none(); };
    nb::class_<WorkHandle>(m, "Work", "An operation on a stream.", nb::is_weak_referenceable())
        .def("wait", &WorkHandle::wait, nb::arg("timeout").none() = nb::none(), locked)
        .def("_await_end", &WorkHandle::await_end, nb::arg("timeout"), locked)
        .def("done", &WorkHandle::done, locked)
        .def("__repr__", &WorkHandle::repr)
        .def_rw("group", &WorkHandle::group, nb::arg().none())
        .def_prop_ro("waited", [](const WorkHandle& w) { return !w->failed_unnoticed(); })
        // As of the messages in which no data has arrived.
        .def_prop_ro("message", [](const WorkHandle&) { return std::tuple(kAny, kAny, 0); })
        .def_prop_ro("cancelled", [](const WorkHandle&) { return false; })
        .def_prop_ro("given", nothing);
    nb::class_<HostStream>(m, "HostStream", "An ordered queue of the program's own work, run by a thread.")
        .def_static("create", [] { return HostStream::create(python()); })
        .def_prop_ro("handle", &HostStream::handle)
        .def("submit", &submit, nb::arg("function"))
        .def("failed", [](HostStream& stream) { return works_of(stream.take_failed()); })
        .def("idle", &HostStream::idle)
        .def("sync", &sync_stream, nb::arg("timeout").none() = nb::none())
        .def("close", &close_stream, nb::arg("timeout"));
    nb::class_<HostEvents>(m, "HostEvents", "Events of this process and its streams, by number.")
        .def_static("create", &events::create)
        .def_static("destroy", &events::destroy, nb::arg("event"))
        .def_static(
            "record", [](uint64_t event, uint64_t stream) { events::record(event, stream); }, nb::arg("event"),
            nb::arg("stream"))
        .def_static("wait", &events::wait, nb::arg("stream"), nb::arg("event"), Release())
        .def_static("reached", &events::reached, nb::arg("event"))
        .def_static("synchronize", &synchronize, nb::arg("event"), nb::arg("timeout").none() = nb::none());
}
