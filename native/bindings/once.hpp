// A value that is made when it is first needed, by Python code. Several threads may make it at the same time; the first
// one is kept. The initialisation of a function's static variable holds a lock, which could deadlock: the Python code
// may wait for a thread that waits for this lock and holds the GIL.
#pragma once
#include <atomic>
#include <memory>

template <class T> class Once {
public:
    template <class Make> const T& get(const Make& make) {
        const T* value = value_.load(std::memory_order_acquire);
        if (value) return *value;
        auto made = std::make_unique<const T>(make());
        if (!value_.compare_exchange_strong(value, made.get())) return *value;
        return *made.release();  // it lives as long as the process, whose threads may use it to the end
    }

private:
    std::atomic<const T*> value_{nullptr};
};
