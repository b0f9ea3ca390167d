#include "stream/stream.hpp"

#include "base/errors.hpp"
#include "stream/function_task.hpp"
#include "stream/stream_core.hpp"
#include "sync/engine_thread.hpp"

namespace rankwise {

Stream::Stream(Embedding& program) : core_(std::make_shared<StreamCore>(program)), pending_(&core_->pending) {}

bool Stream::on_own_thread() const { return StreamCore::running_here == core_.get(); }

std::string Stream::call_site(Embedding& program) {
    const StreamCore* const here = StreamCore::running_here;
    if (const Task* const task = here ? here->current.get() : nullptr) {
        if (!task->site_.empty()) return task->site_;
        if (task->place_.code) return program.describe(task->place_);
    }
    return is_engine_thread ? "" : program.call_site();
}

std::shared_ptr<Task> Stream::enqueue(std::shared_ptr<Task> task, std::string site, const CodePlace& place) {
    core_->check_usable();
    task->site_ = std::move(site);
    task->place_ = place;
    core_->submit(task);
    return task;
}

std::shared_ptr<Task> Stream::submit(std::function<void()> body, CodeOf whose, std::string site) {
    return enqueue(std::make_shared<FunctionTask>(std::move(body), whose), std::move(site));
}

std::shared_ptr<Task> Stream::mark() {
    core_->check_usable();
    {
        const std::lock_guard lock(core_->mutex);
        if (core_->pending.load() == 0 && !core_->broken && !core_->closing) return reached_mark();
    }
    return enqueue(std::make_shared<Task>());
}

std::shared_ptr<Task> Stream::reached_mark() { return finished(std::make_shared<Task>()); }

std::shared_ptr<Task> Stream::finished(std::shared_ptr<Task> task) {
    task->mark_done();
    return task;
}

void Stream::follow(std::shared_ptr<Task> mark) {
    core_->check_usable();
    if (mark->stream_ == core_ || mark->succeeded()) return;
    submit([core = core_.get(), mark = std::move(mark)] {  // the thread that runs this keeps the core alive
        switch (core->wait_for(mark, nullptr)) {
        case WaitResult::Failed: core->broken = mark->failure_; return;
        case WaitResult::Closing: throw Closed("this stream was closed while it waited for an event");
        default: return;
        }
    });
}

Stream::WaitResult Stream::wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop) {
    return core_->wait_for(mark, stop);
}

bool Stream::only_begun() const { return core_->pending.load() == core_->begun.load(); }

bool Stream::last_not_begun() const { return core_->pending.load() == core_->begun.load() + 1; }

bool Stream::last_is_done() const {
    if (core_->fork.is_child()) return false;
    const std::lock_guard lock(core_->mutex);
    return core_->queue.empty() && (!core_->current || core_->current->ended());
}

void Stream::sync(double timeout, const CallOptions& options) {
    if (idle() || on_own_thread()) return;
    core_->check_usable();
    core_->help(nullptr, StreamCore::Tasks::All, options);
    if (!idle()) enqueue(std::make_shared<Task>())->wait(timeout, options);
}

bool Stream::drain(double timeout) {
    if (idle_but_for_caller() || core_->fork.is_child()) return true;
    if (on_own_thread()) return false;
    core_->hurry();
    std::unique_lock lock(core_->mutex);
    return core_->changed.wait_for(lock, std::chrono::duration<double>(std::min(timeout, 1e9)),
                                   [&] { return core_->pending.load() == 0; });
}

void Stream::hurry() { core_->hurry(); }

std::vector<std::shared_ptr<Task>> Stream::take_failed() {
    std::vector<std::shared_ptr<Task>> taken;
    if (core_->fork.is_child()) return taken;
    const std::lock_guard lock(core_->mutex);
    while (!core_->failed.empty())
        if (auto task = core_->failed.pop_front(); task->failed_unnoticed()) taken.push_back(std::move(task));
    return taken;
}

bool Stream::close(double timeout) { return core_->close(timeout); }

}  // namespace rankwise
