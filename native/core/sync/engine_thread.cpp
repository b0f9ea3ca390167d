#include "sync/engine_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "base/errors.hpp"

namespace rankwise {

thread_local constinit bool is_engine_thread = false;

std::thread engine_thread(std::function<void()> body) {
    const struct WithoutSignals {  // only the program's own threads handle them
        sigset_t before;
        WithoutSignals() {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    } without_signals;
    try {
        return std::thread([body = std::move(body)] {
            is_engine_thread = true;
            body();
        });
    } catch (const std::system_error& e) {
        throw Error(std::string("this process cannot start a thread: ") + e.what());
    }
}

}  // namespace rankwise
