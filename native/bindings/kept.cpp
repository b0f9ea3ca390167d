#include "kept.hpp"

#include <mutex>
#include <utility>

#include "sync/forks.hpp"

namespace {

std::mutex mutex;
std::vector<PyObject*> unwanted;  // the interpreter will release their references
bool announced = false;           // whether the interpreter knows that there are some
[[maybe_unused]] const bool unwanted_locked_around_forks =
    rankwise::lock_around_forks([] { mutex.lock(); }, [] { mutex.unlock(); });

int release_unwanted(void*) {
    std::vector<PyObject*> taken;
    {
        std::lock_guard lock(mutex);
        taken.swap(unwanted);
        announced = false;
    }
    for (PyObject* object : taken) Py_DECREF(object);
    return 0;
}

}  // namespace

// The object's own destructor may call Python code, and so this library. The interpreter's main thread therefore runs
// it later.
Kept::~Kept() {
    if (!object_ || !nb::is_alive()) return;
    bool announce;
    {
        std::lock_guard lock(mutex);
        unwanted.push_back(object_);
        announce = !std::exchange(announced, true);
    }
    // Not with the lock: this call may wait for Python's other threads.
    if (announce && Py_AddPendingCall(&release_unwanted, nullptr) != 0) {
        std::lock_guard lock(mutex);
        announced = false;  // the next one tries again
    }
}
