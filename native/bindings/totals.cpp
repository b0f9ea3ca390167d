// Measuring what the operations of this process do, also the operations of communicators that are written in Python.
#include "trace/totals.hpp"

#include "base/clock.hpp"
#include "bindings.hpp"

using namespace rankwise;

namespace {

// From the clocks when this library was loaded and now.
double seconds_per_tick() {
    static const ClockReading first = ClockReading::now();
    const ClockReading now = ClockReading::now();
    const uint64_t ticks = now.ticks - first.ticks;
    return ticks ? 1e-9 * double(now.monotonic - first.monotonic) / double(ticks) : 1e-9;
}

using NamedTotal = std::tuple<std::string, uint64_t, uint64_t, uint64_t, uint64_t>;

// Operations of one name, which may differ in how they do it, are added.
std::vector<NamedTotal> totals() {
    std::map<std::string, Total> by_name;
    const auto all = Totals::now();
    for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].operations) continue;
        Total& total = by_name[name(Op(i))];
        total.operations += all[i].operations;
        total.bytes += all[i].bytes;
        total.ticks += all[i].ticks;
        total.waited += all[i].waited;
    }
    std::vector<NamedTotal> result;
    for (const auto& [name, t] : by_name) result.emplace_back(name, t.operations, t.ticks, t.waited, t.bytes);
    return result;
}

// Python code does not know how much of the time it waited for other ranks: all of it counts as waiting.
nb::object counted(const std::string& operation, uint64_t operations, uint64_t bytes, nb::callable function,
                   nb::args args) {
    struct Measured {
        const Op op;
        Total done;
        const uint64_t began = ticks();
        std::optional<Totals::Whole> whole{std::in_place};
        ~Measured() {
            done.ticks = done.waited = ticks() - began;
            whole.reset();
            Totals::add(op, done);
        }
    } const measured{op_named(operation), {operations, bytes}};
    return function(*args);
}

nb::object uncounted(nb::callable function, nb::args args) {
    const Totals::Whole whole;
    return function(*args);
}

}  // namespace

void bind_totals(nb::module_& m) {
    seconds_per_tick();
    m.def("seconds_per_tick", &seconds_per_tick);
    m.def("begin_measurement", &Totals::begin);
    m.def("end_measurement", &Totals::end);
    m.def("totals", &totals);
    m.def("counted", &counted, nb::arg("operation"), nb::arg("operations"), nb::arg("bytes"), nb::arg("function"),
          nb::arg("args"));
    m.def("uncounted", &uncounted, nb::arg("function"), nb::arg("args"));
}
