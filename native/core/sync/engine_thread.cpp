#include "sync/engine_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace rankwise {

thread_local constinit bool is_engine_thread = false;

std::thread engine_thread(std::function<void()> body) {
    sigset_t all, before;  // only the program's own threads handle signals
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread([body = std::move(body)] {
        is_engine_thread = true;
        body();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace rankwise
