// Lists of objects that contain their own links, so that any of them can be removed in constant time, and queues of
// such objects by key.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace rankwise {

template <class T> struct Links {
    T *before = nullptr, *after = nullptr;
};

template <class T, Links<T> T::*links> class LinkedList {
public:
    T* first() const { return first_; }
    bool empty() const { return !first_; }
    static T* after(const T& item) { return (item.*links).after; }
    void append(T& item) { insert_before(nullptr, item); }
    // Before `next`, or, if that is null, at the end.
    void insert_before(T* next, T& item) {
        T* const before = next ? (next->*links).before : last_;
        item.*links = {before, next};
        (before ? (before->*links).after : first_) = &item;
        (next ? (next->*links).before : last_) = &item;
    }
    void remove(T& item) {
        const auto [before, after] = item.*links;
        (before ? (before->*links).after : first_) = after;
        (after ? (after->*links).before : last_) = before;
        item.*links = {};
    }
    // Keeps the list in the order of the items' `number_`. Searches from the front: for an item that was there before.
    void put_back(T& item) {
        T* next = first_;
        while (next && next->number_ < item.number_) next = after(*next);
        insert_before(next, item);
    }

private:
    T *first_ = nullptr, *last_ = nullptr;
};

template <class T, Links<T> T::*links> class Queues {
public:
    using Queue = LinkedList<T, links>;
    Queue& at(uint64_t key) { return queues_[key]; }
    T* first(uint64_t key) const {
        const auto found = queues_.find(key);
        return found == queues_.end() ? nullptr : found->second.first();
    }
    void remove(uint64_t key, T& item) {
        const auto found = queues_.find(key);
        found->second.remove(item);
        if (found->second.empty()) queues_.erase(found);
    }

private:
    std::unordered_map<uint64_t, Queue> queues_;
};

}  // namespace rankwise
