// The queue of a stream, and who runs it: a thread of the pool, or a thread that waits for one of its tasks.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "stream/stream.hpp"
#include "stream/task_queue.hpp"

namespace rankwise {

class StreamCore : public std::enable_shared_from_this<StreamCore> {
public:
    explicit StreamCore(Embedding& program) : program(program) {}

    void submit(const std::shared_ptr<Task>& task);
    // Runs the tasks up to `last`, or all if that is null, in the calling thread. Stops where that cannot be, because
    // another thread runs the stream, or the next task is not for this thread; Tasks::Ready: or where it would wait.
    enum class Tasks : bool { All, Ready };
    void help(const Task* last, Tasks tasks, const CallOptions& options);
    // Sleeps until the task has run. Returns false after `timeout` seconds.
    bool await(Task& task, double timeout, const CallOptions& options);
    void hurry();
    Stream::WaitResult wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop);
    bool close(double timeout);
    // A forked child has a copy of this but no thread that runs it; it must not even lock the mutex.
    void check_usable() const;

    static thread_local const StreamCore* running_here;  // the one that this thread runs

    std::mutex mutex;
    std::condition_variable changed;  // all tasks have run, or nobody runs the stream any more
    TaskQueue queue;
    std::shared_ptr<Task> current;  // the running task
    std::shared_ptr<Task> awaited;  // the mark for which it waits
    std::exception_ptr broken;      // why all following tasks are cancelled; only who runs the stream uses it
    TaskQueue failed;
    std::atomic<uint32_t> pending{0}, begun{0};  // tasks that have not ended; those of them that have begun
    std::atomic<bool> closing{false};
    Embedding& program;
    const ForkMark fork;

private:
    class Helping;
    void run();
    void run_first(std::unique_lock<std::mutex>& lock, const CallOptions& options);
    void start_thread();
    void run_for_sleepers();

    bool thread_ = false, thread_runs_ = false;  // a thread of the pool runs the stream, or will soon; it does
    bool helped_ = false;                        // a waiting thread runs it
    uint32_t sleepers_ = 0;                      // threads in await()
};

}  // namespace rankwise
