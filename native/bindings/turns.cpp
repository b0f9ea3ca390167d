// The turns of a communicator in Python: one call at a time, and which it is. In C++ since a lock of
// Python's, taken and left by `with`, costs as much as a short message.
#include <chrono>
#include <memory>
#include <mutex>

#include "bindings.hpp"

using namespace std::chrono_literals;

namespace {

[[noreturn]] void raise(const nb::object& error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    nb::raise_python_error();
}

class Turn {
public:
    // other: whose calls and these are one at a time.
    explicit Turn(const Turn* other) : lock_(other ? other->lock_ : std::make_shared<std::timed_mutex>()) {}

    nb::object run(nb::handle comm, nb::handle call, nb::handle move, nb::handle args) {
        const Inside inside(*this);
        static PyObject* const refusal = PyUnicode_InternFromString("_refusal");
        if (!nb::getattr(comm, nb::handle(refusal)).is_none()) raise(comm.attr("_refused")());
        ++sequence_;
        call_ = nb::borrow(call);
        inside_ = true;
        PyObject* result = ask_for_gil([&] { return PyObject_Call(move.ptr(), args.ptr(), nullptr); });
        if (!result) {
            nb::python_error error;
            comm.attr("_failing")(nb::borrow(error.value()));  // raises, where it has another word for it
            error.restore();
            nb::raise_python_error();
        }
        return nb::steal(result);
    }

    void enter() {
        while (!acquire(kLook.count()))
            if (PyErr_CheckSignals()) nb::raise_python_error();
    }
    void leave() { lock_->unlock(); }
    bool acquire(double seconds) {
        if (lock_->try_lock()) return true;
        ReleaseGil released;
        return lock_->try_lock_for(std::chrono::duration<double>(seconds));
    }
    nb::object call() const { return call_; }
    bool inside() const { return inside_; }
    uint64_t sequence() const { return sequence_; }

private:
    struct Inside {
        Turn& turn;
        explicit Inside(Turn& turn_) : turn(turn_) { turn.enter(); }
        ~Inside() {
            turn.inside_ = false;
            turn.leave();
        }
        Inside(const Inside&) = delete;
    };
    static constexpr std::chrono::duration<double> kLook = 50ms;  // between two looks for a Ctrl-C

    std::shared_ptr<std::timed_mutex> lock_;
    nb::object call_ = nb::make_tuple("barrier");
    bool inside_ = false;
    uint64_t sequence_ = 0;
};

}  // namespace

void bind_turns(nb::module_& m) {
    nb::class_<Turn>(m, "Turn", "The turns of a communicator in Python.")
        .def(nb::init<const Turn*>(), nb::arg("other").none() = nb::none())
        .def("run", &Turn::run, nb::arg("comm"), nb::arg("call"), nb::arg("move"), nb::arg("args"))
        .def("__enter__", &Turn::enter)
        .def("__exit__", [](Turn& t, nb::handle, nb::handle, nb::handle) { t.leave(); }, nb::arg("kind").none(), nb::arg("value").none(),
             nb::arg("trace").none())
        .def("acquire", &Turn::acquire, nb::arg("timeout"))
        .def("release", &Turn::leave)
        .def_prop_ro("call", &Turn::call)
        .def_prop_ro("inside", &Turn::inside)
        .def_prop_ro("sequence", &Turn::sequence);
}
