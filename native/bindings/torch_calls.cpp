// The operations of a process group of torch.distributed in their common case: on plain tensors, with the group's
// timeout. The general path, the method of the same name of the operations' class, takes all others.
#include <array>
#include <optional>

#include "messages.hpp"
#include "shortcuts.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

nb::handle name_of(const char* text) { return PyUnicode_InternFromString(text); }

// Names of attributes; made when the module is imported, and kept.
struct Names {
    nb::handle async_op, timeout, reduce_op, root_rank, inner, tensors, core, message;
};
Names names;

// An attribute of torch's options; invalid if these are something else, such as the arguments of a short form.
nb::object attribute(nb::handle object, nb::handle name) {
    nb::object found = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
    if (!found.is_valid()) PyErr_Clear();
    return found;
}

// The item of a list with one, else invalid.
nb::object only(nb::handle list) {
    const bool single = PyList_CheckExact(list.ptr()) && PyList_GET_SIZE(list.ptr()) == 1;
    return nb::borrow(single ? PyList_GET_ITEM(list.ptr(), 0) : nullptr);
}

bool empty(nb::handle splits) { return PyList_CheckExact(splits.ptr()) && PyList_GET_SIZE(splits.ptr()) == 0; }

class TorchCalls {
public:
    // operations: has the general path; it owns this. work: makes torch's Work. unset: the timeout in options without
    // one. ops: the numbers of reductions by the hash of torch's.
    TorchCalls(std::shared_ptr<Comm> comm, nb::handle operations, nb::object work, nb::object unset,
               const nb::dict& ops)
        : comm_(std::move(comm)), operations_(nb::steal(PyWeakref_NewRef(operations.ptr(), nullptr))),
          kind_(nb::borrow(operations.type())), work_(std::move(work)), unset_(std::move(unset)) {
        for (auto [hash, number] : ops)
            if (const auto at = nb::cast<size_t>(hash); at < ops_.size()) ops_[at] = nb::borrow(number);
    }

    nb::object all_reduce(nb::handle tensors, nb::handle opts, nb::handle timeout, nb::handle op) {
        const nb::object x = only(tensors);
        const auto call = [&] {
            const nb::handle number = reduction(opts);
            return number.is_valid() && torch_shortcuts.all_reduce(*comm_, x, number, nb::none());
        };
        return x.is_valid() ? make("allreduce", opts, x, call, tensors, opts, timeout, op)
                            : general("allreduce", tensors, opts, timeout, op);
    }

    nb::object broadcast(nb::handle tensors, nb::handle opts, nb::handle timeout, nb::handle root) {
        const nb::object x = only(tensors);
        const auto call = [&] {
            const nb::object src = attribute(opts, names.root_rank);
            return src.is_valid() && torch_shortcuts.broadcast(*comm_, x, src, nb::none());
        };
        return x.is_valid() ? make("broadcast", opts, x, call, tensors, opts, timeout, root)
                            : general("broadcast", tensors, opts, timeout, root);
    }

    nb::object all_gather(nb::handle output, nb::handle input, nb::handle opts) {
        const auto call = [&] { return torch_shortcuts.all_gather(*comm_, input, output); };
        return make("all_gather_single", opts, output, call, output, input, opts);
    }

    nb::object all_gathers(nb::handle outputs, nb::handle inputs, nb::handle opts) {
        const nb::object output = only(outputs), input = only(inputs);
        if (!output.is_valid() || !input.is_valid())
            return general("all_gather_single_coalesced", outputs, inputs, opts);
        return all_gather(output, input, opts);
    }

    nb::object reduce_scatter(nb::handle output, nb::handle input, nb::handle opts) {
        const auto call = [&] {
            const nb::handle number = reduction(opts);
            return number.is_valid() && torch_shortcuts.reduce_scatter(*comm_, input, number, output);
        };
        return make("reduce_scatter_single", opts, output, call, output, input, opts);
    }

    nb::object reduce_scatters(nb::handle outputs, nb::handle inputs, nb::handle opts) {
        const nb::object output = only(outputs), input = only(inputs);
        if (!output.is_valid() || !input.is_valid())
            return general("reduce_scatter_single_coalesced", outputs, inputs, opts);
        return reduce_scatter(output, input, opts);
    }

    nb::object all_to_all(nb::handle output, nb::handle input, nb::handle splits_out, nb::handle splits_in,
                          nb::handle opts, nb::handle timeout) {
        const auto call = [&] {
            if (empty(splits_out) && empty(splits_in)) return bool(torch_shortcuts.all_to_all(*comm_, input, output));
            return all_to_all_rows(*comm_, input, splits_in, output, splits_out);
        };
        return make("all_to_all_single", opts, output, call, output, input, splits_out, splits_in, opts, timeout);
    }

    nb::object barrier(nb::handle opts, nb::handle timeout) {
        return make("barrier", opts, {}, [&] { return torch_shortcuts.barrier(*comm_); }, opts, timeout);
    }

    nb::object send(nb::handle tensors, nb::handle dst, nb::handle tag) {
        return message("send", &send_tensor, tensors, dst, tag);
    }

    nb::object receive(nb::handle tensors, nb::handle src, nb::handle tag) {
        return message("recv", &receive_tensor, tensors, src, tag);
    }

    bool coalescing = false;  // the general path collects the Works
    int64_t count = 0;        // of the operations that did not take the general path

private:
    // The number of the options' reduction, if the engine has it.
    nb::handle reduction(nb::handle opts) const {
        const nb::object op = attribute(opts, names.reduce_op);
        const Py_hash_t hash = op.is_valid() ? PyObject_Hash(op.ptr()) : -1;
        if (hash == -1) PyErr_Clear();
        return size_t(hash) < ops_.size() ? nb::handle(ops_[size_t(hash)]) : nb::handle();
    }

    // Makes or starts `call`, as `opts` say. The general path, which has the same arguments, does what it does not.
    // written: a tensor, if any.
    template <class Call, class... A>
    nb::object make(const char* name, nb::handle opts, nb::handle written, const Call& call, A... args) {
        const nb::object timeout = attribute(opts, names.timeout);
        const nb::object async_op = attribute(opts, names.async_op);
        const bool usual = timeout.is_valid() && PyObject_RichCompareBool(timeout.ptr(), unset_.ptr(), Py_EQ) == 1;
        if (usual && async_op.is(Py_False)) {
            if (!call()) return general(name, args...);
            ++count;
            return nb::none();
        }
        if (!usual || !async_op.is(Py_True) || coalescing || comm_->on_stream_thread()) return general(name, args...);
        const nb::object core = operations();
        std::optional<WorkHandle> started;
        {
            Starting starting;
            if (call()) started.emplace(starting.work(core, written, args...));
        }
        if (!started) return general(name, args...);
        ++count;
        return work(nb::cast(std::move(*started)), written, core);
    }

    template <class Start>
    nb::object message(const char* name, Start start, nb::handle tensors, nb::handle peer, nb::handle tag) {
        const nb::object x = only(tensors), core = operations();
        if (!x.is_valid() || coalescing) return general(name, tensors, peer, tag);
        StartedMessage begun = start(*comm_, x, peer, tag, core);
        if (!begun.begun) return general(name, tensors, peer, tag);
        if (!begun.pending) return work({}, x, core);
        const nb::object pending = work(nb::cast(std::move(*begun.pending)), x, core);
        nb::setattr(pending, names.message, nb::bool_(true));
        return pending;
    }

    // torch's Work. inner: ours, or invalid if it is complete.
    nb::object work(const nb::object& inner, nb::handle tensor, const nb::object& core) const {
        const nb::object made = nb::steal(PyObject_CallNoArgs(work_.ptr()));
        if (!made.is_valid()) nb::raise_python_error();
        if (inner.is_valid()) nb::setattr(made, names.inner, inner);
        if (tensor.is_valid()) nb::setattr(made, names.tensors, nb::make_tuple(tensor));
        nb::setattr(made, names.core, core);
        return made;
    }

    template <class... A> nb::object general(const char* name, A... args) const {
        return kind_.attr(name)(operations(), args...);
    }

    nb::object operations() const {
        nb::object found = operations_();
        if (found.is_none()) throw Closed("this process group is closed");
        return found;
    }

    const std::shared_ptr<Comm> comm_;
    const nb::object operations_, kind_, work_, unset_;
    std::array<nb::object, 32> ops_;
};

}  // namespace

void bind_torch_calls(nb::module_& m, nb::class_<Comm>& comm) {
    names = {name_of("asyncOp"), name_of("timeout"), name_of("reduceOp"), name_of("rootRank"),
             name_of("inner"),   name_of("tensors"), name_of("core"),     name_of("message")};
    const auto optional = [](const char* name) { return nb::arg(name).none() = nb::none(); };
    const auto opts = optional("opts"), timeout = optional("timeout");
    nb::class_<TorchCalls>(m, "TorchCalls", "A process group's operations on plain tensors.")
        .def_rw("coalescing", &TorchCalls::coalescing)
        .def_ro("count", &TorchCalls::count)
        .def("allreduce", &TorchCalls::all_reduce, nb::arg("tensors"), opts, timeout, optional("op"))
        .def("broadcast", &TorchCalls::broadcast, nb::arg("tensors"), opts, timeout, nb::arg("root") = 0)
        .def("all_gather_single", &TorchCalls::all_gather, nb::arg("output"), nb::arg("input"), opts)
        .def("all_gather_single_coalesced", &TorchCalls::all_gathers, nb::arg("outputs"), nb::arg("inputs"), opts)
        .def("reduce_scatter_single", &TorchCalls::reduce_scatter, nb::arg("outputTensor"), nb::arg("inputTensor"),
             opts)
        .def("reduce_scatter_single_coalesced", &TorchCalls::reduce_scatters, nb::arg("outputTensors"),
             nb::arg("inputTensors"), opts)
        .def("all_to_all_single", &TorchCalls::all_to_all, nb::arg("output"), nb::arg("input"),
             nb::arg("output_split_sizes"), nb::arg("input_split_sizes"), opts, timeout)
        .def("barrier", &TorchCalls::barrier, opts, timeout)
        .def("send", &TorchCalls::send, nb::arg("tensors"), nb::arg("dstRank"), nb::arg("tag"))
        .def("recv", &TorchCalls::receive, nb::arg("tensors"), nb::arg("srcRank"), nb::arg("tag"));
    comm.def(
        "torch_calls",
        [](std::shared_ptr<Comm> c, nb::handle operations, nb::object work, nb::object unset, const nb::dict& ops) {
            return TorchCalls(std::move(c), operations, std::move(work), std::move(unset), ops);
        },
        nb::arg("operations"), nb::arg("work"), nb::arg("unset"), nb::arg("ops"));
}
