// Translates the core's exceptions to Python's.
#include "bindings.hpp"
#include "kept.hpp"

namespace {

nb::object python_error(const char* type) { return nb::module_::import_("rankwise.contract.errors").attr(type); }

// A text may have been cut off in the middle of a character, or overwritten.
nb::object readable(std::string_view text) {
    return nb::steal(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace"));
}

nb::tuple ranks(const std::vector<int>& numbers) {
    nb::list all;
    for (int rank : numbers) all.append(rank);
    return nb::tuple(all);
}

// The Python stacks of the missing ranks that answered, as text.
std::string stacks_text(const nb::dict& stacks) {
    return nb::cast<std::string>(nb::module_::import_("rankwise.contract.stacks").attr("in_words")(stacks));
}

void set_error(const nb::object& error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void raise_translated(const std::exception_ptr& p) {
    using namespace rankwise;
    try {
        std::rethrow_exception(p);
    } catch (const Raised& e) {
        set_error(nb::borrow(e.error->get()));
    } catch (const Interrupted&) {  // the signal handler's exception is pending already
    } catch (const PeerLost& e) {
        set_error(python_error("PeerLostError")(readable(e.what()), nb::arg("rank") = e.rank,
                                                nb::arg("how") = readable(e.how), nb::arg("operation") = e.operation,
                                                nb::arg("sequence") = e.sequence, nb::arg("host") = readable(e.host),
                                                nb::arg("pid") = e.pid));
    } catch (const Mismatch& e) {
        set_error(python_error("MismatchError")(readable(e.what()), nb::arg("calls") = by_rank(e.calls),
                                                nb::arg("sequence") = e.sequence, nb::arg("sites") = by_rank(e.sites),
                                                nb::arg("different") = ranks(e.different)));
    } catch (const TimedOut& e) {
        nb::dict stacks = by_rank(e.stacks);
        const std::string text = e.what() + stacks_text(stacks);
        set_error(python_error("CollectiveTimeout")(
            readable(text), nb::arg("limit") = e.limit, nb::arg("missing") = ranks(e.missing),
            nb::arg("states") = by_rank(e.states), nb::arg("operation") = e.operation, nb::arg("sequence") = e.sequence,
            nb::arg("stacks") = stacks));
    } catch (const Closed& e) {
        set_error(python_error("ClosedError")(readable(e.what())));
    } catch (const Unsupported& e) {
        set_error(python_error("UnsupportedError")(e.operation, e.backend, e.why));
    } catch (const BadArgument& e) {
        PyErr_SetObject(PyExc_ValueError, readable(e.what()).ptr());
    } catch (const OutOfMemory& e) {
        PyErr_SetObject(PyExc_MemoryError, readable(e.what()).ptr());
    } catch (const Error& e) {
        set_error(python_error("RankwiseError")(readable(e.what())));
    }
}

// If an exception such as KeyboardInterrupt is raised while the error is made, the program gets that one.
void translate(const std::exception_ptr& p, void*) {
    try {
        raise_translated(p);
    } catch (nb::python_error& e) {
        e.restore();
    }
}

}  // namespace

nb::dict by_rank(const rankwise::RankTexts& texts) {
    nb::dict d;
    for (const auto& [rank, text] : texts) d[nb::int_(rank)] = readable(text);
    return d;
}

void bind_errors(nb::module_&) { nb::register_exception_translator(translate, nullptr); }
