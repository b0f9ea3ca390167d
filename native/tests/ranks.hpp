// Runs ranks as threads of the test, or as processes that it forks, over a segment of their own.
#pragma once
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

#include "check.hpp"
#include "started.hpp"

namespace ranks {

using rankwise::Comm;
using rankwise::Segment;

// With RANKWISE_SHORT, as `make test` runs ThreadSanitizer: only on 2 and 3 ranks, without arrays of many megabytes,
// and with fewer limits on unexpected messages; `make test-all PART=sanitizers` has all.
inline bool shortened() { return std::getenv("RANKWISE_SHORT"); }

// With RANKWISE_PAGE, the core takes pages to have so many bytes, as in `make test-all PART=pages`.
inline const size_t pretended = [] {
    const char* const bytes = std::getenv("RANKWISE_PAGE");
    return rankwise::pretended_page_bytes = bytes ? std::strtoull(bytes, nullptr, 10) : 0;
}();

// The world sizes of a test.
inline std::vector<int> worlds(std::initializer_list<int> all) {
    std::vector<int> chosen;
    for (int n : all)
        if (!shortened() || n == 2 || n == 3) chosen.push_back(n);
    return chosen;
}

// Whether the ranks of `run` are processes.
inline bool in_processes() { return std::getenv("RANKWISE_TEST_PROCESSES"); }

using Body = std::function<void(Comm&)>;

inline void be_rank(const std::shared_ptr<Segment>& segment, int rank, const Body& body, double timeout,
                    const rankwise::Settings& settings, bool process) {
    auto comm = Comm::join(segment, rank, timeout, process ? Comm::RunsAs::Process : Comm::RunsAs::Thread, settings);
    try {
        body(*comm);
    } catch (const std::exception& e) {
        CHECK(false, "rank " << rank << " of " << segment->world_size() << " threw: " << e.what());
        comm->abort("failed its test");
    }
    comm->close(5);
}

inline std::shared_ptr<Segment> run_in_threads(int n, const Body& body, double timeout = 60,
                                               const rankwise::Settings& settings = {}) {
    auto segment = Segment::create(n);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n; ++rank)
        threads.emplace_back([&, rank] { be_rank(segment, rank, body, timeout, settings, false); });
    for (auto& t : threads) t.join();
    return segment;
}

inline std::shared_ptr<Segment> run_in_processes(int n, const Body& body, double timeout,
                                                 const rankwise::Settings& settings) {
    auto segment = Segment::create(n);
    std::vector<pid_t> pids;
    const unsigned left = alarm(0);  // seconds until the test counts as hanging
    alarm(left);
    for (int rank = 0; rank < n; ++rank) {
        if (const pid_t pid = fork(); pid != 0) {
            pids.push_back(pid);
            continue;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (left > 5) alarm(left - 5);  // this process shows its stacks before the test ends
        check::failures = 0;
        be_rank(segment, rank, body, timeout, settings, true);
        _exit(check::result());
    }
    for (int rank = 0; rank < n; ++rank) {
        int status = 0;
        waitpid(pids[size_t(rank)], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank " << rank << " ended with status " << status);
    }
    return segment;
}

// Runs `body(comm)` as each rank of a new segment, with these settings, and returns the segment after all have closed.
// Processes see what the test had before, each in memory of its own.
inline std::shared_ptr<Segment> run(int n, const Body& body, double timeout = 60,
                                    const rankwise::Settings& settings = {}) {
    return (in_processes() ? run_in_processes : run_in_threads)(n, body, timeout, settings);
}

// A number that all ranks of a test share, whatever they are.
class SharedCount {
public:
    std::atomic<int>& operator*() const { return *at_; }

private:
    std::atomic<int>* const at_ =
        new (mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
            std::atomic<int>(0);
};

// The content of a message that rank `from` sends; each has another one.
inline std::vector<int64_t> message(int from, int number, uint64_t count) {
    std::vector<int64_t> v(count);
    for (uint64_t i = 0; i < count; ++i) v[i] = int64_t(i) * 13 + from * 1000 + number;
    return v;
}

// Synchronises without waiting for messages, unlike a barrier.
inline void meet(Comm& c) {
    int64_t one = 1;
    c.all_reduce(&one, 1, rankwise::DType::I64, rankwise::ReduceOp::SUM);
}

// The type of the error that `call` throws, or "".
template <class Call> std::string thrown(Call&& call) {
    try {
        call();
    } catch (const rankwise::PeerLost&) {
        return "PeerLost";
    } catch (const rankwise::Mismatch&) {
        return "Mismatch";
    } catch (const rankwise::TimedOut&) {
        return "TimedOut";
    } catch (const rankwise::Interrupted&) {
        return "Interrupted";
    } catch (const rankwise::Closed&) {
        return "Closed";
    } catch (const rankwise::Unsupported&) {
        return "Unsupported";
    } catch (const rankwise::BadArgument&) {
        return "BadArgument";
    } catch (const rankwise::OutOfMemory&) {
        return "OutOfMemory";
    } catch (const rankwise::Error&) {
        return "Error";
    }
    return "";
}

}  // namespace ranks
