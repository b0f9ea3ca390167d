// For a test of one source file: refuses a process private memory, or threads, from one of its requests on. It replaces
// operator new and pthread_create.
#pragma once
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace requests {

enum class Kind { Memory, Thread };
// Only that request, or it and all that follow.
enum class Extent { One, AllFrom };

struct Refusal {
    Kind kind;
    Extent extent;
    int at;  // the number of the request, from 1 on
};

inline std::atomic<const Refusal*> refusal{nullptr};
inline std::atomic<int> made{0};

inline bool refused(Kind kind) {
    const Refusal* const now = refusal.load();
    if (!now || now->kind != kind) return false;
    const int number = made.fetch_add(1) + 1;
    return number == now->at || (number > now->at && now->extent == Extent::AllFrom);
}

// All threads of the process are refused for as long as this lives.
class Refused {
public:
    explicit Refused(const Refusal& what) {
        made = 0;
        refusal = &what;
    }
    ~Refused() { refusal = nullptr; }
    Refused(const Refused&) = delete;
};

[[gnu::noinline]] inline void* allocate(size_t bytes, size_t alignment) {
    if (refused(Kind::Memory)) throw std::bad_alloc();
    bytes = (bytes / alignment + 1) * alignment;
    void* const memory = alignment > alignof(max_align_t) ? std::aligned_alloc(alignment, bytes) : std::malloc(bytes);
    if (!memory) throw std::bad_alloc();
    return memory;
}

}  // namespace requests

void* operator new(size_t bytes) { return requests::allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) { return requests::allocate(bytes, size_t(alignment)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {  // AddressSanitizer has one of its own
    try {
        return requests::allocate(bytes, 1);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
// Not inlined, because GCC would take each for the end of another operator new's memory.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
    if (requests::refused(requests::Kind::Thread)) return EAGAIN;
    static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    return real(thread, attributes, body, argument);
}
