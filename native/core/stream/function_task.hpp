// A function as an entry of a stream's queue.
#pragma once
#include <signal.h>

#include <functional>
#include <utility>

#include "stream/task.hpp"

namespace rankwise {

class FunctionTask : public Task {
public:
    FunctionTask(std::function<void()> body, CodeOf whose)
        : body_(std::move(body)), of_program_(whose == CodeOf::Program) {
        if (of_program_) pthread_sigmask(SIG_SETMASK, nullptr, &signals_);
    }

protected:
    bool of_program() const override { return of_program_; }
    void run(const CallOptions& /*options*/) override {
        const auto body = std::exchange(body_, nullptr);  // released before the task is done, with what it references
        const Signals of_the_program(*this);
        body();
    }

private:
    // Processes that the program's code starts inherit the thread's signal mask: with all signals blocked, as in the
    // engine's threads, nothing but SIGKILL would end them.
    class Signals {
    public:
        explicit Signals(const FunctionTask& task) : changed_(task.of_program_) {
            if (changed_) pthread_sigmask(SIG_SETMASK, &task.signals_, &before_);
        }
        ~Signals() {
            if (changed_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
        }
        Signals(const Signals&) = delete;

    private:
        const bool changed_;
        sigset_t before_;
    };

    std::function<void()> body_;
    const bool of_program_;
    sigset_t signals_{};  // those that the thread which has submitted it blocks
};

}  // namespace rankwise
