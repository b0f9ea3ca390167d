#include "sync/forks.hpp"

#include <pthread.h>

namespace rankwise {

std::atomic<unsigned> forks{0};

namespace {
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
}  // namespace

bool lock_around_forks(void (*lock)(), void (*unlock)()) {
    pthread_atfork(lock, unlock, unlock);
    return true;
}

}  // namespace rankwise
