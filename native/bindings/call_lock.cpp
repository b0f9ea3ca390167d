// Serialises the calls of a communicator in Python and records the current call. The thread that holds the lock may
// lock it again, so that several of its calls follow each other with no other thread's in between. It is in C++ because
// a Python lock, acquired and released by `with`, costs as much as a short message.
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "bindings.hpp"

using namespace std::chrono_literals;

namespace {

[[noreturn]] void raise(const nb::object& error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    nb::raise_python_error();
}

class CallLock {
public:
    // other: shares its lock, so that the two communicators' calls are serialised. refused(comm): returns the error of
    // a call while `refuses` is set. failing(comm, error): called with the error of a call; may raise a better one.
    CallLock(const CallLock* other, nb::object refused, nb::object failing)
        : lock_(other ? other->lock_ : std::make_shared<Lock>()), refused_(std::move(refused)),
          failing_(std::move(failing)) {}

    nb::object run(nb::handle comm, nb::handle call, nb::handle move, nb::handle args) {
        const Inside inside(*this);
        if (refuses_) raise(refused_(comm));
        ++sequence_;
        set_call(nb::borrow(call));
        inside_ = true;
        PyObject* result = acquiring_gil([&] { return PyObject_Call(move.ptr(), args.ptr(), nullptr); });
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
    void leave() {
        if (--lock_->depth > 0) return;
        lock_->owner = std::thread::id();
        lock_->mutex.unlock();
    }
    bool acquire(double seconds) {
        if (!held()) {
            if (!lock_->mutex.try_lock()) {
                ReleaseGil released;
                if (!lock_->mutex.try_lock_for(std::chrono::duration<double>(seconds))) return false;
            }
            lock_->owner = std::this_thread::get_id();
        }
        ++lock_->depth;
        return true;
    }
    bool held() const { return lock_->owner.load() == std::this_thread::get_id(); }
    nb::object call() {
        const nb::ft_lock_guard lock(call_mutex_);
        return call_;
    }
    bool inside() const { return inside_; }
    uint64_t sequence() const { return sequence_; }
    bool refuses() const { return refuses_; }
    void set_refuses(bool now) { refuses_ = now; }

private:
    struct Lock {
        std::timed_mutex mutex;
        std::atomic<std::thread::id> owner{};
        int depth = 0;  // how often its owner has it
    };
    struct Inside {
        CallLock& calls;
        explicit Inside(CallLock& calls_) : calls(calls_) { calls.enter(); }
        ~Inside() {
            calls.inside_ = false;
            calls.leave();
        }
        Inside(const Inside&) = delete;
    };
    void set_call(nb::object call) {
        const nb::ft_lock_guard lock(call_mutex_);
        std::swap(call_, call);  // the former one is released without the lock
    }
    static constexpr std::chrono::duration<double> kCheckEvery = 50ms;  // between two checks for Ctrl-C

    std::shared_ptr<Lock> lock_;
    nb::object refused_, failing_;
    nb::ft_mutex call_mutex_;
    nb::object call_ = nb::make_tuple("barrier");
    // Other threads ask for these.
    std::atomic<bool> refuses_ = false, inside_ = false;
    std::atomic<uint64_t> sequence_ = 0;
};

}  // namespace

void bind_call_lock(nb::module_& m) {
    nb::class_<CallLock>(m, "CallLock", "Serialises the calls of a communicator in Python.")
        .def(nb::init<const CallLock*, nb::object, nb::object>(), nb::arg("other").none() = nb::none(),
             nb::arg("refused").none() = nb::none(), nb::arg("failing").none() = nb::none())
        .def_prop_rw("refuses", &CallLock::refuses, &CallLock::set_refuses)
        .def("run", &CallLock::run, nb::arg("comm"), nb::arg("call"), nb::arg("move"), nb::arg("args"))
        .def("__enter__", &CallLock::enter)
        .def(
            "__exit__", [](CallLock& c, nb::handle, nb::handle, nb::handle) { c.leave(); }, nb::arg("kind").none(),
            nb::arg("value").none(), nb::arg("trace").none())
        .def("acquire", &CallLock::acquire, nb::arg("timeout"))
        .def("release", &CallLock::leave)
        .def_prop_ro("held", &CallLock::held)
        .def_prop_ro("call", &CallLock::call)
        .def_prop_ro("inside", &CallLock::inside)
        .def_prop_ro("sequence", &CallLock::sequence);
}
