// Registered memory for NumPy: an object with the array interface, and a memory handler (NEP 49) that makes NumPy
// allocate its arrays in registered memory.
#include "bindings.hpp"

#include <numpy/arrayobject.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>

using namespace rankwise;

namespace {

template <class Memory> nb::dict interface_of(const Memory& memory) {
    nb::dict d;
    d["version"] = 3;
    d["typestr"] = "|u1";
    d["shape"] = nb::make_tuple(memory.bytes());
    d["data"] = nb::make_tuple(Address(memory.data()), false);
    return d;
}

// This process's own copy of a file, page by page as it writes to it. Python's mmap would keep a descriptor open.
class FileCopy {
public:
    FileCopy(int fd, uint64_t bytes)
        : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0)), bytes_(bytes) {
        if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    }
    FileCopy(const FileCopy&) = delete;
    ~FileCopy() { munmap(data_, bytes_); }
    void* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

private:
    void* data_;
    uint64_t bytes_;
};

// The allocator behind a memory handler. The arrays that it allocates keep it alive.
class Allocator {
public:
    explicit Allocator(std::shared_ptr<BufferCache> buffers) : buffers_(std::move(buffers)) {
        std::strcpy(handler.name, "rankwise");
        handler.version = 1;
        handler.allocator = {this, &Allocator::make, &Allocator::make_zeroed, &Allocator::resize, &Allocator::free};
    }
    PyDataMem_Handler handler{};

private:
    // Smaller allocations come from malloc, because a block of the segment takes whole pages.
    static size_t from() { return page_bytes(); }

    static void* make(void* self, size_t bytes) { return of(self).allocate(bytes, Contents::Undefined); }
    static void* make_zeroed(void* self, size_t count, size_t item) {
        size_t bytes;
        return __builtin_mul_overflow(count, item, &bytes) ? nullptr : of(self).allocate(bytes, Contents::Zeros);
    }
    static void free(void* self, void* p, size_t) {
        if (!of(self).release(p)) std::free(p);
    }
    static void* resize(void* self, void* p, size_t bytes) {
        Allocator& a = of(self);
        const size_t before = a.size_of(p);
        if (!before && bytes < from()) return std::realloc(p, bytes);
        void* moved = a.allocate(bytes, Contents::Undefined);
        if (!moved || !p) return moved;
        if (!before) {  // NumPy does not pass the old size, but realloc knows it
            void* grown = std::realloc(p, bytes);
            if (!grown) {
                free(self, moved, 0);
                return nullptr;
            }
            p = grown;
        }
        std::memcpy(moved, p, before ? std::min(before, bytes) : bytes);
        free(self, p, 0);
        return moved;
    }

    static Allocator& of(void* self) { return *static_cast<Allocator*>(self); }
    void* allocate(size_t bytes, Contents contents) {
        if (bytes >= from()) {
            try {
                auto memory = std::make_unique<Registered>(buffers_, bytes, contents);
                void* p = memory->data();
                std::lock_guard lock(mutex_);
                blocks_.emplace(p, std::move(memory));
                return p;
            } catch (const Error&) {
                return nullptr;  // NumPy raises a MemoryError
            }
        }
        const size_t some = std::max<size_t>(bytes, 1);
        return contents == Contents::Zeros ? std::calloc(some, 1) : std::malloc(some);
    }
    size_t size_of(void* p) {
        std::lock_guard lock(mutex_);
        const auto found = blocks_.find(p);
        return found == blocks_.end() ? 0 : found->second->bytes();
    }
    bool release(void* p) {
        std::unique_ptr<Registered> removed;  // freed after the lock is released
        std::lock_guard lock(mutex_);
        const auto found = blocks_.find(p);
        if (found == blocks_.end()) return false;
        removed = std::move(found->second);
        blocks_.erase(found);
        return true;
    }

    std::shared_ptr<BufferCache> buffers_;
    std::mutex mutex_;
    std::map<void*, std::unique_ptr<Registered>> blocks_;
};

constexpr const char* kCapsule = "mem_handler";  // the name that NEP 49 requires

nb::ft_mutex importing;  // of the array that NumPy's header reads

void import_numpy() {
    const nb::ft_lock_guard lock(importing);
    if (!PyArray_API && _import_array() < 0) nb::raise_python_error();
}

// A handler for `use_handler` that allocates in this rank's segment.
nb::object memory_handler(const Comm& comm) {
    import_numpy();
    auto allocator = std::make_unique<Allocator>(comm.buffers());
    PyObject* capsule = PyCapsule_New(&allocator->handler, kCapsule, [](PyObject* c) {
        auto* handler = static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(c, kCapsule));
        delete static_cast<Allocator*>(handler->allocator.ctx);
    });
    if (!capsule) nb::raise_python_error();
    allocator.release();
    return nb::steal(capsule);
}

nb::object use_handler(nb::handle handler) {
    import_numpy();
    PyObject* before = PyDataMem_SetHandler(handler.is_none() ? nullptr : handler.ptr());
    if (!before) nb::raise_python_error();
    return nb::steal(before);
}

}  // namespace

void bind_registered(nb::module_& m) {
    nb::class_<Registered>(m, "Registered", "Memory of this rank in the segment; given back with this object.")
        .def_prop_ro("__array_interface__", &interface_of<Registered>);
    nb::class_<SharedBlock>(m, "SharedBlock",
                            "Memory in the segment that several ranks hold, each with such an object.")
        .def_prop_ro("ticket", &SharedBlock::ticket)
        .def_prop_ro("offset", &SharedBlock::offset)
        .def_prop_ro("__array_interface__", &interface_of<SharedBlock>);
    nb::class_<FileCopy>(m, "FileCopy", "This process's own writable copy of a file, which need not stay open.")
        .def(nb::init<int, uint64_t>(), nb::arg("fd"), nb::arg("bytes"))
        .def_prop_ro("__array_interface__", &interface_of<FileCopy>);
    m.def("memory_handler", &memory_handler, nb::arg("comm"),
          "A NumPy memory handler whose arrays lie in the communicator's segment.");
    m.def("use_handler", &use_handler, nb::arg("handler").none(),
          "Let NumPy, in this context, allocate arrays with it; returns the previous handler.");
}
