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
    // other: whose calls and these are one at a time. refused(comm): the error of a call while `refuses` is set.
    // failing(comm, error): gets the error of a call, and raises another where it has a better one.
    Turn(const Turn* other, nb::object refused, nb::object failing)
        : lock_(other ? other->lock_ : std::make_shared<std::timed_mutex>()), refused_(std::move(refused)), failing_(std::move(failing)) {}

    nb::object run(nb::handle comm, nb::handle call, nb::handle move, nb::handle args) {
        const Inside inside(*this);
        if (refuses_) raise(refused_(comm));
        ++sequence_;
        call_ = nb::borrow(call);
        inside_ = true;
        PyObject* result = ask_for_gil([&] { return PyObject_Call(move.ptr(), args.ptr(), nullptr); });
        if (!result) {
            nb::python_error error;
            failing_(comm, nb::borrow(error.value()));
            error.restore();
            nb::raise_python_error();
        }
        return nb::steal(result);
    }

    void enter() {
        while (!acquire(kCheckEvery.count()))
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
    bool refuses() const { return refuses_; }
    void set_refuses(bool now) { refuses_ = now; }

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
    static constexpr std::chrono::duration<double> kCheckEvery = 50ms;  // between two checks for a Ctrl-C

    std::shared_ptr<std::timed_mutex> lock_;
    nb::object refused_, failing_;
    bool refuses_ = false;
    nb::object call_ = nb::make_tuple("barrier");
    bool inside_ = false;
    uint64_t sequence_ = 0;
};

}  // namespace

void bind_turns(nb::module_& m) {
    nb::class_<Turn>(m, "Turn", "The turns of a communicator in Python.")
        .def(nb::init<const Turn*, nb::object, nb::object>(), nb::arg("other").none() = nb::none(), nb::arg("refused").none() = nb::none(),
             nb::arg("failing").none() = nb::none())
        .def_prop_rw("refuses", &Turn::refuses, &Turn::set_refuses)
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
