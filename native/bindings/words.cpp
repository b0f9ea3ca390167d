// Words of 64 bits in memory that several processes map, for counters and locks.
#include <atomic>

#include "bindings.hpp"
#include "sync/forks.hpp"
#include "sync/waiting.hpp"

using namespace rankwise;

namespace {

// The words begin at `address`; `memory` keeps them mapped.
class Words {
public:
    Words(nb::object memory, Address address, size_t count)
        : memory_(std::move(memory)), first_(static_cast<std::atomic<int64_t>*>(pointer(address))), count_(count) {}
    int64_t add(size_t index, int64_t n) { return word(index).fetch_add(n); }
    bool swap_if(size_t index, int64_t before, int64_t after) {
        return word(index).compare_exchange_strong(before, after);
    }
    // Sleeps while the word has this value, for at most so long: a word of which only the upper half changes is not
    // noticed. Returns early when a signal comes.
    void sleep_while(size_t index, int64_t value, double seconds) {
        const auto limit = sleep_limit(std::chrono::duration<double>(seconds));
        std::atomic<uint32_t>& low = low_half(index);
        without_gil([&] { futex_sleep(low, uint32_t(value), limit); });
    }
    void wake(size_t index) { futex_wake_all(low_half(index)); }

private:
    std::atomic<int64_t>& word(size_t index) {
        if (index >= count_) throw BadArgument("index: " + std::to_string(index) + " given, expected a word's number");
        return first_[index];
    }
    std::atomic<uint32_t>& low_half(size_t index) {  // the first one, on the little-endian machines that are supported
        return reinterpret_cast<std::atomic<uint32_t>&>(word(index));
    }

    nb::object memory_;
    std::atomic<int64_t>* first_;
    size_t count_;
};

// One rank's side of a lock in two words, a SharedIntegers of any kind: the mark of the holder, or 0, and the number of
// sleepers. Each attempt's mark differs from all others, and names the rank: modulo world_size it is rank + 1.
class LockProtocol {
public:
    LockProtocol(nb::object words, int64_t rank, int64_t world_size)
        : words_(std::move(words)), world_size_(world_size), next_(rank + 1) {
        nb::try_cast(words_, of_host_);
    }
    bool try_acquire(int64_t holder) {
        check_process();
        const int64_t mark = next_.fetch_add(world_size_);
        if (!swap_holder(holder, mark)) return false;
        mark_ = mark;
        return true;
    }
    bool release() {
        check_process();
        const int64_t mark = mark_;
        if (!mark || !swap_holder(mark, 0)) return false;
        if (of_host_ ? of_host_->add(1, 0) : nb::cast<int64_t>(words_.attr("add")(1, 0))) words_.attr("wake")(0);
        return true;
    }

private:
    void check_process() const {
        if (fork_.is_child())
            throw Closed("this lock belongs to the parent of this forked process; a forked child is not a rank");
    }
    bool swap_holder(int64_t before, int64_t after) {
        return of_host_ ? of_host_->swap_if(0, before, after)
                        : nb::cast<bool>(words_.attr("swap_if")(0, before, after));
    }

    const nb::object words_;
    Words* of_host_ = nullptr;  // the same words, if they are in memory of this host
    const int64_t world_size_;
    std::atomic<int64_t> next_, mark_{0};  // of the next attempt, and of the latest that got the lock; 0 before
    const ForkMark fork_;
};

}  // namespace

void bind_words(nb::module_& m) {
    nb::class_<Words>(m, "Words", "Words of 64 bits in memory that several processes map.")
        .def(nb::init<nb::object, Address, size_t>(), nb::arg("memory"), nb::arg("address"), nb::arg("count"))
        .def("add", &Words::add, nb::arg("index"), nb::arg("n"), "Adds n to a word, and returns its value before.")
        .def("swap_if", &Words::swap_if, nb::arg("index"), nb::arg("before"), nb::arg("after"),
             "Gives a word the value `after` if it has the value `before`; returns whether it had.")
        .def("sleep_while", &Words::sleep_while, nb::arg("index"), nb::arg("value"), nb::arg("seconds"),
             "Sleeps while a word has this value, for at most so long, or until a signal comes.")
        .def("wake", &Words::wake, nb::arg("index"), "Wakes all who sleep_while this word has some value.");
    nb::class_<LockProtocol>(m, "LockProtocol", "One rank's side of a lock in two words.")
        .def(nb::init<nb::object, int64_t, int64_t>(), nb::arg("words"), nb::arg("rank"), nb::arg("world_size"))
        .def("try_acquire", &LockProtocol::try_acquire, nb::arg("holder") = 0,
             "Acquires the lock, if it is free or this holder has it; returns whether it did.")
        .def("release", &LockProtocol::release, "Frees the lock, if this rank has it; returns whether it had.");
}
