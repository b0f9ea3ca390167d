// An ordered queue of work run by a thread of its own, which exists from the first piece of work on
// and sleeps while there is none.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "waiting.hpp"

namespace rankwise {

// One piece of work. Safe to use from any thread.
class Task {
public:
    explicit Task(std::function<void()> body) : body_(std::move(body)) {}
    // Until it has run, at most `timeout` seconds; rethrows what it threw. TimedOut leaves it queued.
    void wait(double timeout);
    bool done() const { return finished_.load() != 0; }

private:
    friend class Stream;
    void run() noexcept;
    std::function<void()> body_;
    std::exception_ptr failure_;
    std::atomic<uint32_t> finished_{0};  // futex
};

class Stream {
public:
    ~Stream() { close(); }
    std::shared_ptr<Task> submit(std::function<void()> body);
    // Whether all that was submitted has run.
    bool idle() const { return pending_.load() == 0; }
    // Whether the caller is the stream's own thread.
    bool here() const { return std::this_thread::get_id() == thread_.get_id(); }
    // Until all that was submitted before has run, at most `timeout` seconds. Throws TimedOut.
    void sync(double timeout);
    // Lets the piece that runs end, drops the others (they fail with Closed), and ends the thread.
    void close();

private:
    void run();
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Task>> queue_;
    std::atomic<uint32_t> pending_{0};
    bool closing_ = false;
    std::thread thread_;
};

// A thread of the engine: it takes no signals and never asks the embedding about interrupts.
std::thread engine_thread(std::function<void()> body);

}  // namespace rankwise
