#include "embedding.hpp"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <unordered_map>

#include "bindings.hpp"
#include "capi/site.hpp"
#include "once.hpp"
#include "sync/forks.hpp"

namespace {

constexpr size_t kKnownFiles = 4096;

// The folder of Python files above this part of a module's path, with a trailing slash.
std::string folder_above(const char* part, const char* module) {
    const std::string file = nb::cast<std::string>(nb::module_::import_(module).attr("__file__"));
    return file.substr(0, file.rfind(part));
}

const std::string& package() {
    static Once<std::string> folder;
    return folder.get([] { return folder_above("contract", "rankwise.contract.errors"); });
}

bool passes_on(const std::string& file) {
    if (file.starts_with(package())) return !file.substr(package().size()).starts_with("tools/");  // programs
    return file.empty() || file.starts_with("<frozen ") || file.find("/torch/distributed/") != file.npos ||
           file.find("/site-packages/mpi4py/") != file.npos;
}

// Without its folder, the line of a file of Python's standard library or of an installed package; "" for any other.
std::string library_line(const std::string& line) {
    static Once<std::vector<std::string>> folders;
    const auto found = [] {
        return std::vector<std::string>{"/site-packages/", "/dist-packages/", folder_above("os.py", "os")};
    };
    for (const std::string& folder : folders.get(found))
        if (const size_t at = line.find(folder); at != line.npos) return line.substr(at + folder.size());
    return "";
}

// What a file's code is: to find out takes too long for each started operation.
enum class Origin : uint8_t { Program, PassesOn, Library };

// A file's, by the identity of its name: there are a few for each module, which are kept.
Origin origin_of(PyObject* file_name) {
    static std::mutex mutex;
    static auto& known = *new std::unordered_map<PyObject*, Origin>;
    [[maybe_unused]] static const bool locked_around_forks =
        rankwise::lock_around_forks([] { mutex.lock(); }, [] { mutex.unlock(); });
    {
        const std::lock_guard lock(mutex);
        if (const auto found = known.find(file_name); found != known.end()) return found->second;
    }
    const char* const text = PyUnicode_AsUTF8(file_name);
    if (!text) PyErr_Clear();
    const std::string name(text ? text : "");
    const Origin origin = passes_on(name)              ? Origin::PassesOn
                          : library_line(name).empty() ? Origin::Program
                                                       : Origin::Library;
    const std::lock_guard lock(mutex);
    if (known.size() < kKnownFiles && known.emplace(file_name, origin).second) Py_INCREF(file_name);
    return origin;
}

// From Python 3.11 on a position is an instruction, and before, a line.
#if PY_VERSION_HEX >= 0x030b0000
int position_of(PyFrameObject* frame) { return PyFrame_GetLasti(frame); }
int line_at(PyCodeObject* code, int position) { return PyCode_Addr2Line(code, position); }
#else
int position_of(PyFrameObject* frame) { return PyFrame_GetLineNumber(frame); }
int line_at(PyCodeObject* /*code*/, int position) { return position; }
#endif

std::string line_of(void* code_, int position) {
    auto* const code = static_cast<PyCodeObject*>(code_);
    const char* const file = PyUnicode_AsUTF8(code->co_filename);
    if (!file) PyErr_Clear();
    const std::string line = std::string(file ? file : "?") + ":" + std::to_string(line_at(code, position));
    const std::string of_library = library_line(line);
    return of_library.empty() ? line : of_library;
}

// A waiting rank runs Python's signal handlers, and stops waiting when one of them raises.
struct Python final : rankwise::Embedding {
    bool interrupted() override {
        HoldGil gil;
        return PyErr_CheckSignals() != 0;
    }

    // In C code that calls the C API, where it does so; else the innermost line outside of this package and, if that is
    // a library's, before it the innermost one that is not.
    std::string call_site() override {
        if (std::string site = rankwise::capi::call_site(); !site.empty()) return site;
        HoldGil gil;
        std::string own, innermost;
        walk_frames([&](PyFrameObject* frame, PyCodeObject* code) {
            own = program_line(frame, code);
            if (const std::string library = library_line(own); !library.empty()) {
                if (innermost.empty()) innermost = library;
                own.clear();
            }
            return !own.empty();
        });
        if (own.empty()) return innermost;
        return innermost.empty() ? own : own + " (in " + innermost + ")";
    }

    std::string describe(const rankwise::CodePlace& place) override {
        HoldGil gil;
        const std::string line = line_of(place.code, place.position);
        if (!place.library) return line;
        return line + " (in " + line_of(place.library, place.library_position) + ")";
    }

    rankwise::Clock::time_point debugged() override {
        const std::atomic<int64_t>* const last = debugged_.load();
        return rankwise::Clock::time_point(std::chrono::nanoseconds(last ? last->load() : 0));
    }

    // fd: of memory that begins with that time, in nanoseconds of CLOCK_MONOTONIC. It stays mapped.
    void read_debugged_from(int fd) {
        void* const memory = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
        if (memory != MAP_FAILED) debugged_ = static_cast<const std::atomic<int64_t>*>(memory);
    }

    std::string stacks() override {
        HoldGil gil;
        // No destructor may run while this thread is unwound because the interpreter shuts down, so no nb::object here.
        PyObject* text = acquiring_gil([]() -> PyObject* {
            PyObject* module = PyImport_ImportModule("rankwise.contract.stacks");
            PyObject* found = module ? PyObject_CallMethod(module, "all_threads", nullptr) : nullptr;
            Py_XDECREF(module);
            return found;
        });
        try {
            if (!text) throw nb::python_error();
            return nb::cast<std::string>(nb::steal(text));
        } catch (const std::exception& e) {
            return std::string("its interpreter failed to format them: ") + e.what();
        }
    }

private:
    std::atomic<const std::atomic<int64_t>*> debugged_{nullptr};
};

Python& the_python() {
    static Python one;
    return one;
}

#if PY_VERSION_HEX < 0x030d0000  // from then on a fork takes Python's own lock, and this one could deadlock with it
std::mutex making_thread_state;
[[maybe_unused]] const bool thread_states_locked_around_forks =
    rankwise::lock_around_forks([] { making_thread_state.lock(); }, [] { making_thread_state.unlock(); });
#endif

}  // namespace

PyThreadState* HoldGil::new_thread_state() {
#if PY_VERSION_HEX < 0x030d0000
    const std::lock_guard lock(making_thread_state);
#endif
    return PyThreadState_New(PyInterpreterState_Main());
}

std::string program_line(PyFrameObject* frame, PyCodeObject* code) {
    const char* const file = PyUnicode_AsUTF8(code->co_filename);
    if (!file) PyErr_Clear();
    const std::string name(file ? file : "");
    return passes_on(name) ? "" : name + ":" + std::to_string(PyFrame_GetLineNumber(frame));
}

std::pair<rankwise::CodePlace, nb::object> python_place() {
    std::pair<rankwise::CodePlace, nb::object> found;
    if (rankwise::capi::site.file) return found;
    auto& [place, owner] = found;
    walk_frames([&](PyFrameObject* frame, PyCodeObject* code) {
        const Origin origin = origin_of(code->co_filename);
        if (origin == Origin::PassesOn || (origin == Origin::Library && place.code)) return false;
        nb::object owned = nb::borrow(reinterpret_cast<PyObject*>(code));
        if (place.code) {
            place.library = place.code;
            place.library_position = place.position;
            owned = nb::make_tuple(owner, owned);
        }
        place.code = code;
        place.position = position_of(frame);
        owner = std::move(owned);
        return origin == Origin::Program;
    });
    return found;
}

rankwise::Embedding& python() { return the_python(); }

void bind_embedding(nb::module_& m) {
    m.def(
        "read_debugged_from", [](int fd) { the_python().read_debugged_from(fd); }, nb::arg("fd"),
        "Take the time at which a rank of this host was last in a debugger from this memory.");
}
