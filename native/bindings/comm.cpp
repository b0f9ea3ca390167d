#include "capi/handles.hpp"
#include "messages.hpp"
#include "shortcuts.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

// Arguments are converted with the GIL held; the operation runs without it.
using Release = nb::call_guard<ReleaseGil>;

// A Description as Python makes it.
class OwnedDescription {
public:
    OwnedDescription() = default;  // none
    OwnedDescription(std::vector<int64_t> shape, const std::string& operation) : shape_(std::move(shape)) {
        for (Op op : {Op::Scan, Op::Exscan})
            if (operation == name(op)) operation_ = op;
        if (operation_ == Op::None && !operation.empty())
            throw BadArgument("operation: '" + operation + "' given, expected scan or exscan");
    }
    Description get() const { return {operation_, int(shape_.size()), shape_.data()}; }

private:
    Op operation_ = Op::None;
    std::vector<int64_t> shape_{0};
};

// Converts an argument from Python to an operation's parameter.
template <class T> struct From {
    using Type = T;
    static const Type& convert(const Type& value) { return value; }
};
template <> struct From<void*> {
    using Type = Address;
    static void* convert(Address address) { return pointer(address); }
};
template <> struct From<const void*> : From<void*> {};
template <> struct From<uint64_t> {
    using Type = int64_t;
    static uint64_t convert(int64_t count) { return checked_count(count); }
};
template <> struct From<Counts> {
    using Type = std::vector<int64_t>;
    static Counts convert(const Type& counts) {
        for (int64_t count : counts)
            if (count < 0)
                throw BadArgument("counts: " + std::to_string(count) +
                                  " given among them, expected numbers of elements of at least 0");
        return Counts(counts.begin(), counts.end());
    }
};
template <> struct From<DType> {
    using Type = int;
    static DType convert(int number) { return checked_dtype(number); }
};
template <> struct From<ReduceOp> {
    using Type = int;
    static ReduceOp convert(int number) { return checked_op(number); }
};
template <> struct From<CallOptions> {
    using Type = OwnedDescription;
    static CallOptions convert(const OwnedDescription& description) { return {description.get()}; }
};

// The operation in the calling thread, and the operation on the communicator's stream.
template <class... A> auto blocking(void (Comm::*operation)(A...)) {
    return [operation](Comm& c, const typename From<std::decay_t<A>>::Type&... args) {
        (c.*operation)(From<std::decay_t<A>>::convert(args)...);
    };
}
template <class T, class Given> decltype(auto) converted(const Given& given, const CallOptions& options) {
    if constexpr (std::is_same_v<T, CallOptions>)
        return CallOptions{given.get(), options.program_lock, options.started};
    else return From<T>::convert(given);
}
template <class... A> auto started(void (Comm::*operation)(A...)) {
    return [operation](Comm& c, const typename From<std::decay_t<A>>::Type&... args, nb::object keep,
                       nb::object result) -> WorkHandle {
        (void(From<std::decay_t<A>>::convert(args)), ...);  // throws now what it would throw later
        const auto [place, code] = python_place();
        auto task =
            c.start([&c, operation, args...](
                        const CallOptions& options) { (c.*operation)(converted<std::decay_t<A>>(args, options)...); },
                    place);
        return {std::move(task), code.is_valid() ? nb::make_tuple(keep, code) : std::move(keep), std::move(result)};
    };
}
template <auto operation> void barrier(Comm& c) {
    ReleaseGilToWait released;
    (c.*operation)(released.options());
}

// Runs a Python function on the communicator's stream, in the order of its operations. at_once: in a thread of the
// stream; else whoever waits for it may run it.
WorkHandle start_call(Comm& c, nb::callable function, bool at_once) {
    return WorkHandle::of_call(std::move(function), [&](std::function<void()> body) {
        return at_once ? c.submit(std::move(body), CodeOf::Program) : c.start_body(std::move(body));
    });
}

// Calls a Python function, with no other thread's call between its calls of this communicator.
nb::object call_locked(Comm& c, const nb::callable& function) {
    const Comm::Lock lock = without_gil([&] { return c.lock(); });
    return function();
}

std::vector<std::string> names_of(const std::vector<rankwise::Algorithm>& algorithms) {
    std::vector<std::string> names;
    for (rankwise::Algorithm a : algorithms) names.emplace_back(rankwise::tuning::name(a));
    return names;
}

std::vector<std::string> algorithms_of(const Comm& c, const std::string& operation, uint64_t bytes) {
    return names_of(c.algorithms(rankwise::tuning::op_named(operation), bytes));
}

nb::dict all_algorithms() {
    nb::dict all;
    for (const auto& [op, list] : rankwise::tuning::algorithms()) all[rankwise::name(op)] = names_of(list);
    return all;
}

nb::dict by_name(const rankwise::Thresholds& thresholds) {
    nb::dict values;
    for (const auto& [name, value] : rankwise::tuning::kThresholds) values[name] = thresholds.*value;
    return values;
}

nb::dict default_thresholds() {
    const rankwise::Tuning defaults = rankwise::tuning::parse_tuning({}, rankwise::single_copies_are_slow());
    nb::dict all;
    for (const auto& [cores, thresholds] : rankwise::tuning::kCores) all[cores] = by_name(defaults.*thresholds);
    return all;
}

std::pair<std::string, nb::dict> thresholds_of(const Comm& c) {
    const rankwise::Conditions& agreed = c.conditions();
    return {rankwise::tuning::kCores[rankwise::tuning::cores_of(agreed.oversubscribed, agreed.yields)].first,
            by_name(agreed.thresholds)};
}

}  // namespace

void bind_comm(nb::module_& m) {
    m.def("algorithms", &all_algorithms, "The algorithms of each operation that has several, by name.");
    m.def("thresholds", &default_thresholds,
          "This machine's default thresholds, by how ranks share cores and by name.");
    nb::class_<OwnedDescription>(m, "Description", "What the ranks compare besides the arguments of a collective.")
        .def(nb::init<std::vector<int64_t>, const std::string&>(), nb::arg("shape"), nb::arg("operation"));
    const auto description = nb::arg("description") = OwnedDescription();
    // What owns the memory of an operation: it stays alive until the engine no longer uses that memory.
    const auto keep = nb::arg("keep").none() = nb::none();
    const auto result = nb::arg("result").none() = nb::none();  // what its Work returns
    nb::class_<rankwise_comm_s>(m, "Handle", "What the C API has for a communicator; it lends its address.")
        .def_prop_ro("address", [](const rankwise_comm_s& handle) { return Address(&handle); });
    nb::class_<Comm> comm(m, "Comm", "One rank's end of one group in a segment.");
    comm.def(
            "allocate",
            [](Comm& c, size_t bytes, bool zeroed) {
                return c.allocate(bytes, zeroed ? Contents::Zeros : Contents::Undefined);
            },
            nb::arg("bytes"), nb::arg("zeroed") = true)
        .def("shared_block", &Comm::shared_block, nb::arg("bytes"), nb::arg("ticket").none() = nb::none(),
             nb::arg("filled") = false)
        .def(
            "in_segment", [](const Comm& c, Address ptr, size_t bytes) { return c.in_segment(pointer(ptr), bytes); },
            nb::arg("ptr"), nb::arg("bytes"))
        .def_prop_ro("segment", [](const Comm& c) { return c.segment(); })
        .def_prop_ro("rank", &Comm::rank)
        .def_prop_ro("world_size", &Comm::world_size)
        .def("set_counted", &Comm::set_counted, nb::arg("now"))
        .def_prop_rw("timeout", &Comm::timeout, &Comm::set_timeout)
        .def("start_call", &start_call, nb::arg("function"), nb::arg("at_once"))
        .def("call", &call_locked, nb::arg("function"))
        .def("sync", &Comm::sync, Release())
        .def("record_event", &Comm::record_event, nb::arg("event"))
        .def("wait_event", &Comm::wait_event, nb::arg("event"))
        .def("sync_stream", &Comm::sync_stream, Release())
        .def("algorithms", &algorithms_of, nb::arg("operation"), nb::arg("bytes"))
        .def_prop_ro("thresholds", &thresholds_of)
        .def("split", &Comm::split, nb::arg("color"), nb::arg("key"), Release())
        .def("make_subgroup", &Comm::make_subgroup, nb::arg("ranks"))
        .def("join_subgroup", &Comm::join_subgroup, nb::arg("subgroup"))
        .def("failed", &Comm::failed, Release())
        .def("agree", &Comm::agree, nb::arg("flag"), Release())
        .def("shrink", &Comm::shrink, nb::arg("exclude"), Release())
        .def("restore", &Comm::restore, Release())
        .def("name_group", &Comm::name_group, nb::arg("name"))
        .def("numbers_in", &Comm::numbers_in, nb::arg("former"))
        .def("abort", &Comm::abort, nb::arg("why"), Release())
        .def("announce_end", &Comm::announce_end)
        .def("expose", &rankwise::capi::exposed)
        .def("close", &Comm::close, nb::arg("timeout"), Release());

    bind_messages(m, comm);
    bind_exchange(comm);
    bind_objects(m, comm);
    bind_shortcuts(comm);
    bind_vector_arrays(comm);
    bind_rows(comm);
    bind_torch_calls(m, comm);

    // Every collective as a blocking call, and as start_<name>, which returns a Work.
    const nb::arg ptr("ptr"), send("send_ptr"), recv("recv_ptr"), count("count"), counts("counts"), dtype("dtype"),
        op("op"), root("root");
    auto both = [&](Op named, auto operation, const auto&... args) {
        comm.def(name(named), blocking(operation), args..., description, Release());
        comm.def((std::string("start_") + name(named)).c_str(), started(operation), args..., description, keep, result);
    };
    comm.def("barrier", &barrier<&Comm::barrier>)
        .def("barrier_without_sync", &barrier<&Comm::barrier_without_sync>)
        .def("start_barrier_without_sync", started(&Comm::barrier_without_sync), description, keep, result);
    both(Op::AllReduce, &Comm::all_reduce, ptr, count, dtype, op);
    both(Op::Broadcast, &Comm::broadcast, ptr, count, dtype, root);
    both(Op::Reduce, &Comm::reduce, ptr, count, dtype, op, root);
    both(Op::AllGather, &Comm::all_gather, send, recv, count, dtype);
    both(Op::Gather, &Comm::gather, send, recv, count, dtype, root);
    both(Op::Scatter, &Comm::scatter, send, recv, count, dtype, root);
    both(Op::ReduceScatter, &Comm::reduce_scatter, send, recv, count, dtype, op);
    both(Op::Scan, &Comm::scan, send, recv, count, dtype, op);
    both(Op::Exscan, &Comm::exscan, send, recv, count, dtype, op);
    both(Op::AllToAll, &Comm::all_to_all, send, recv, count, dtype);
    both(Op::AllGatherV, &Comm::all_gather_v, send, recv, counts, dtype);
    both(Op::GatherV, &Comm::gather_v, send, recv, counts, dtype, root);
    both(Op::ScatterV, &Comm::scatter_v, send, recv, counts, dtype, root);
    both(Op::ReduceScatterV, &Comm::reduce_scatter_v, send, recv, counts, dtype, op);
    both(Op::AllToAllV, &Comm::all_to_all_v, send, recv, nb::arg("send_counts"), nb::arg("recv_counts"), dtype);
}
