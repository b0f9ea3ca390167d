#include "watch/watched_stacks.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "bindings.hpp"
#include "embedding.hpp"
#include "sync/engine_thread.hpp"

namespace {

using namespace std::chrono_literals;

constexpr auto kAnswer = 1s, kDump = 2s;

// Without the lines that say how this package started the program, and the code below them.
std::string of_program(const std::string& stacks) {
    std::string text;
    bool skipping = false;
    for (const std::string_view line : rankwise::parts(stacks, "\n")) {
        const auto names = [line](std::string_view file) { return line.find(file) != line.npos; };
        if (!line.starts_with("    "))
            skipping = names("<frozen runpy>") || names("/rankwise/watch.py") || names("/rankwise/frontends/watch/");
        if (!skipping) text.append(line) += "\n";
    }
    return text;
}

// What faulthandler writes, with the innermost line last and without threads that run no Python. The last thread is the
// main one.
std::string of_dump(const std::string& dump) {
    std::string others, thread;
    for (const std::string_view line : rankwise::parts(dump, "\n")) {
        if (line.starts_with("  File ")) thread = std::string(line) + "\n" + thread;
        else if (!line.starts_with(" ") && !thread.empty()) others += "  a thread:\n" + std::exchange(thread, "");
    }
    return others + (others.empty() || thread.empty() ? "" : "  the main thread:\n") + thread;
}

// A signal makes faulthandler write the stacks to a file although a thread keeps the interpreter's lock.
struct sigaction faulthandler_action;
std::atomic<bool> dumped;

struct WatchedPython final : rankwise::Embedding {
    WatchedPython() {
        nb::module_::import_("faulthandler")
            .attr("register")(signal_, nb::arg("file") = file_, nb::arg("all_threads") = true);
        sigaction(signal_, nullptr, &faulthandler_action);
        struct sigaction with_notice = faulthandler_action;
        with_notice.sa_handler = [](int number) {
            faulthandler_action.sa_handler(number);
            dumped = true;
        };
        sigaction(signal_, &with_notice, nullptr);
    }

    std::string stacks() override {
        const auto answered = [this](auto within) { return answer_.wait_for(within) == std::future_status::ready; };
        // A thread that has asked for the lock waits until it gets it; one is enough.
        if (!answer_.valid() || answered(0s)) {
            const auto task = std::make_shared<std::packaged_task<std::string()>>([] { return python().stacks(); });
            try {
                rankwise::engine_thread([task] { (*task)(); }).detach();
                answer_ = task->get_future();
            } catch (const rankwise::Error&) {  // no thread can be started
                answer_ = {};
            }
        }
        if (answer_.valid() && answered(kAnswer)) return of_program(answer_.get());
        const std::string dump = of_program(of_dump(dumped_stacks()));
        return !dump.empty() ? dump + "    (in a call that keeps the interpreter's lock)\n"
                             : "none, as Python showed no frame; gdb -p " + std::to_string(getpid()) + " shows where";
    }

private:
    std::string dumped_stacks() const {
        dumped = false;
        if (ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0 || kill(getpid(), signal_) != 0) return "";
        for (const auto end = std::chrono::steady_clock::now() + kDump;
             !dumped && std::chrono::steady_clock::now() < end;)
            std::this_thread::sleep_for(1ms);
        std::string text(size_t(lseek(file_, 0, SEEK_END)), '\0');
        text.resize(size_t(std::max(pread(file_, text.data(), text.size(), 0), ssize_t(0))));
        return text;
    }

    const int signal_ = SIGRTMAX - 4;  // one that programs and MPI libraries leave alone
    const int file_ = memfd_create("rankwise-stacks", MFD_CLOEXEC);
    std::future<std::string> answer_;
};

}  // namespace

rankwise::Embedding& watched_python() {
    static auto* const one = new WatchedPython;  // its threads use it until the process has ended
    return *one;
}
