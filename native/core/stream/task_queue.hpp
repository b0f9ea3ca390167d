// Tasks in order. Each links to the next one itself, so no memory is needed to add it, or to move it to another queue.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

#include "stream/task.hpp"

namespace rankwise {

class TaskQueue {
public:
    TaskQueue() = default;
    TaskQueue(const TaskQueue&) = delete;
    ~TaskQueue() {
        while (!empty()) pop_front();  // one after the other, since each owns the next
    }
    bool empty() const { return !first_; }
    size_t size() const { return size_; }
    Task& front() const { return *first_; }
    void push_back(std::shared_ptr<Task> task) {
        Task* const last = task.get();
        (last_ ? last_->next_ : first_) = std::move(task);
        last_ = last;
        ++size_;
    }
    void push_front(std::shared_ptr<Task> task) {
        if (empty()) last_ = task.get();
        task->next_ = std::move(first_);
        first_ = std::move(task);
        ++size_;
    }
    void swap(TaskQueue& other) {
        first_.swap(other.first_);
        std::swap(last_, other.last_);
        std::swap(size_, other.size_);
    }
    std::shared_ptr<Task> pop_front() {
        std::shared_ptr<Task> task = std::move(first_);
        first_ = std::move(task->next_);
        if (empty()) last_ = nullptr;
        --size_;
        return task;
    }

private:
    std::shared_ptr<Task> first_;
    Task* last_ = nullptr;
    size_t size_ = 0;
};

}  // namespace rankwise
