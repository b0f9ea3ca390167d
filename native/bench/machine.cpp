// What the machine can do without an engine, for `rankwise bench machine`: the rates that limit every way of moving
// data between two ranks.
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/aligned_memory.hpp"
#include "bench.hpp"
#include "pinned.hpp"

using namespace rankwise;

namespace {

// A barrier of two threads.
class PairBarrier {
public:
    void arrive_and_wait(int which) {
        const uint64_t now = ++at_[which].count;
        at_[which].seen.store(now, std::memory_order_release);
        while (at_[1 - which].seen.load(std::memory_order_acquire) < now) {
        }
    }

private:
    struct alignas(128) At {
        std::atomic<uint64_t> seen{0};
        uint64_t count = 0;
    } at_[2];
};

Memory memory(size_t bytes) {
    Memory m(bytes);
    std::memset(m.data(), 1, bytes);
    return m;
}

// A sum that the compiler turns into wide loads and cannot optimise away.
uint64_t read_all(const uint8_t* p, size_t bytes) {
    uint64_t sums[8] = {};
    const auto* words = reinterpret_cast<const uint64_t*>(p);
    for (size_t i = 0; i + 8 <= bytes / 8; i += 8)
        for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
    uint64_t all = 0;
    for (uint64_t s : sums) all += s;
    return all;
}

// The shortest time of a round, in seconds; the slower core counts.
template <class Prepare, class Timed> double shortest(size_t bytes, Prepare&& prepare, Timed&& timed) {
    const int rounds = int(std::max<size_t>(5, std::min<size_t>(400, (256u << 20) / bytes)));
    std::vector<double> took[2];
    PairBarrier barrier;
    run_pinned(2, [&](int which) {
        for (int i = 0; i < rounds; ++i) {
            prepare(which);
            barrier.arrive_and_wait(which);
            const auto start = Clock::now();
            timed(which);
            took[which].push_back(std::chrono::duration<double>(Clock::now() - start).count());
            barrier.arrive_and_wait(which);
        }
    });
    double best = 1e9;
    for (int i = 0; i < rounds; ++i) best = std::min(best, std::max(took[0][size_t(i)], took[1][size_t(i)]));
    return best;
}

// The seconds that each of two cores, both at once, needs for `bytes`: to "copy" its own memory, "read" what
// the other wrote last, or "write" what the other read last.
double core_seconds(const std::string& what, size_t bytes) {
    if (own_cores().size() < 2) throw BadArgument("machine: expected at least 2 cores that this process may use");
    ReleaseGil released;
    Memory from[2] = {memory(bytes), memory(bytes)}, to[2] = {memory(bytes), memory(bytes)};
    std::atomic<uint64_t> sink{0};
    if (what == "copy")
        return shortest(bytes, [](int) {}, [&](int w) { std::memcpy(to[w].data(), from[w].data(), bytes); });
    if (what == "read")
        return shortest(
            bytes, [&](int w) { std::memset(from[w].data(), w, bytes); },
            [&](int w) { sink += read_all(from[1 - w].data(), bytes); });
    if (what == "write")
        return shortest(
            bytes, [&](int w) { sink += read_all(from[1 - w].data(), bytes); },
            [&](int w) { std::memset(from[w].data(), w, bytes); });
    throw BadArgument("what: '" + what + "' given, expected copy, read or write");
}

// The seconds that a cache line takes from one core to the other.
double line_seconds() {
    if (own_cores().size() < 2) throw BadArgument("machine: expected at least 2 cores that this process may use");
    ReleaseGil released;
    constexpr int kTrips = 20000;
    double best = 1e9;
    PairBarrier barrier;
    run_pinned(2, [&](int which) {
        for (int round = 0; round < 10; ++round) {
            barrier.arrive_and_wait(which);
            const auto start = Clock::now();
            for (int i = 0; i < kTrips; ++i) barrier.arrive_and_wait(which);
            if (which == 0) best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / kTrips);
        }
    });
    return best;
}

}  // namespace

void bind_machine(nb::module_& m) {
    m.def("core_seconds", &core_seconds, nb::arg("what"), nb::arg("bytes"),
          "The seconds that each of two cores needs for so many bytes, both at once: to 'copy' its own memory, 'read' "
          "what\n"
          "the other core wrote last, or 'write' what it read last. Plain loads and stores; the best of many rounds.");
    m.def("line_seconds", &line_seconds,
          "The seconds until two cores see each other's new cache line, both ways at once.");
}
