// The one place where the core's exceptions become Python's.
#include "bindings.hpp"

namespace {

nb::object python_error(const char* type) { return nb::module_::import_("rankwise.contract.errors").attr(type); }

nb::dict by_rank(const rankwise::Calls& calls) {
    nb::dict d;
    for (const auto& [rank, text] : calls) d[nb::int_(rank)] = nb::str(text.c_str());
    return d;
}

void raise(const nb::object& error) { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr()); }

void translate(const std::exception_ptr& p, void*) {
    using namespace rankwise;
    try {
        std::rethrow_exception(p);
    } catch (const Interrupted&) {  // the signal handler's exception is pending already
    } catch (const PeerLost& e) {
        raise(python_error("PeerLostError")(e.what(), nb::arg("rank") = e.rank, nb::arg("how") = e.how,
                                            nb::arg("operation") = e.operation, nb::arg("sequence") = e.sequence));
    } catch (const Mismatch& e) {
        raise(python_error("MismatchError")(e.what(), nb::arg("calls") = by_rank(e.calls), nb::arg("sequence") = e.sequence));
    } catch (const TimedOut& e) {
        nb::list missing;
        for (int rank : e.missing) missing.append(rank);
        raise(python_error("CollectiveTimeout")(e.what(), nb::arg("limit") = e.limit, nb::arg("missing") = nb::tuple(missing),
                                                nb::arg("states") = by_rank(e.states), nb::arg("operation") = e.operation,
                                                nb::arg("sequence") = e.sequence));
    } catch (const Closed& e) {
        raise(python_error("ClosedError")(e.what()));
    } catch (const BadArgument& e) {
        PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const OutOfMemory& e) {
        PyErr_SetString(PyExc_MemoryError, e.what());
    } catch (const Error& e) {
        raise(python_error("RankwiseError")(e.what()));
    }
}

}  // namespace

void bind_errors(nb::module_&) {
    nb::register_exception_translator(translate, nullptr);
    rankwise::interrupt_check = [] {
        HoldGil gil;
        return PyErr_CheckSignals() != 0;
    };
}
