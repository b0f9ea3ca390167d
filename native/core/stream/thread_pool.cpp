#include "stream/thread_pool.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/linked_list.hpp"
#include "base/policy.hpp"
#include "sync/engine_thread.hpp"
#include "sync/forks.hpp"

namespace rankwise::thread_pool {

namespace {

struct Thread {
    std::condition_variable wake;
    std::function<void()> body;
    Links<Thread> links;
};

// The idle threads, the latest one first: its stack is still in the cache. Never destroyed, because threads may outlive
// the other static objects.
struct Idle {
    std::mutex mutex;
    LinkedList<Thread, &Thread::links> threads;
    ForkMark fork;
};
Idle& idle() {
    static Idle& one = *[] {
        lock_around_forks([] { idle().mutex.lock(); }, [] { idle().mutex.unlock(); });
        return new Idle;
    }();
    return one;
}

// Requests longer time slices than other threads have (Linux 6.12 and later); the total share of the core stays the
// same. A thread with shorter time slices then preempts this one as soon as it wakes, so the program's own thread, back
// from a sleep or from a device, need not wait until a task of the stream has run. The slices are only twice as long,
// because a thread also waits longer for its slice, the longer it is. If the kernel refuses, nothing changes.
void request_longer_time_slices() {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;  // nanoseconds
    } wanted{};
    wanted.size = sizeof wanted;
    if (syscall(SYS_sched_getattr, 0, &wanted, sizeof wanted, 0) != 0 || wanted.policy != SCHED_OTHER ||
        !wanted.runtime)
        return;
    wanted.runtime *= 2;
    syscall(SYS_sched_setattr, 0, &wanted, 0);
}

void work(std::function<void()> first) {
    request_longer_time_slices();
    Thread self;
    self.body = std::move(first);
    while (self.body) {
        std::exchange(self.body, nullptr)();
        std::unique_lock lock(idle().mutex);
        idle().threads.insert_before(idle().threads.first(), self);
        if (!self.wake.wait_for(lock, kIdleThread, [&] { return bool(self.body); })) idle().threads.remove(self);
    }
}

}  // namespace

void run(std::function<void()> body) {
    {
        const std::lock_guard lock(idle().mutex);
        if (idle().fork.is_child()) {  // the threads exist only in the parent
            idle().threads = {};
            idle().fork = {};
        }
        if (Thread* const thread = idle().threads.first()) {
            idle().threads.remove(*thread);
            thread->body = std::move(body);
            thread->wake.notify_one();
            return;
        }
    }
    engine_thread([body = std::move(body)]() mutable { work(std::move(body)); }).detach();
}

}  // namespace rankwise::thread_pool
