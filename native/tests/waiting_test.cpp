// Tests whether ranks share cores, from the cores of each, and how a wait yields.
#include <thread>
#include <vector>

#include "check.hpp"
#include "sync/waiter.hpp"
#include "sync/waiting.hpp"

using namespace rankwise;

namespace {

constexpr uint32_t kNoQuota = UINT32_MAX;

// n processes that may all use the same cores.
std::vector<ProcessCores> unbound(size_t n, uint32_t cores, uint32_t quota = kNoQuota) {
    return std::vector<ProcessCores>(n, {1, cores, quota});
}

// Each of n processes may use one core, and every `users` of them share one.
std::vector<ProcessCores> bound(size_t n, size_t users) {
    std::vector<ProcessCores> all;
    for (size_t i = 0; i < n; ++i) all.push_back({i / users + 1, 1, kNoQuota});
    return all;
}

// How often two waits of a new thread poll for what never comes. lost: as in WaitPolicy.
int polls_of_two_waits(std::chrono::milliseconds lost) {
    using namespace std::chrono_literals;
    int polls = 0;
    std::thread([&] {
        const auto never = [&] { return ++polls == 0; };
        for (int wait = 0; wait < 2; ++wait) CHECK(!Waiter(1.0).poll({0, 0us, 3, 100s, lost}, never));
    }).join();
    return polls;
}

}  // namespace

int main() {
    CHECK_EQ(polls_of_two_waits(std::chrono::hours(1)), 6);
    CHECK_EQ(polls_of_two_waits(std::chrono::milliseconds(-1)),
             1);  // each yield takes too long, so the first is the last
    const ProcessCores own = process_cores();
    CHECK(own.set != 0 && own.count >= 1 && own.quota >= 1);
    CHECK_EQ(usable_cores(), int(std::min(own.count, own.quota)));
    const size_t machine = own.count;
    CHECK(!share_cores(unbound(1, 1)));
    CHECK(!share_cores(unbound(machine, own.count)));
    CHECK(share_cores(unbound(machine + 1, own.count)));
    CHECK(share_cores(unbound(2, 2, 1)));    // the quota allows one
    CHECK(!share_cores(bound(machine, 1)));  // each has a core of its own
    CHECK(share_cores(bound(2, 2)));         // both have the same
    CHECK(share_cores(
        {{1, 8, kNoQuota}, {2, 1, kNoQuota}, {2, 1, kNoQuota}}));  // two have the same, though others are free
    return check::result();
}
