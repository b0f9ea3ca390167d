// Words of 64 bits in memory that several processes map, for counters and locks.
#include <atomic>

#include "bindings.hpp"
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
}
