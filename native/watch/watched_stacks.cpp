#include "watch/watched_stacks.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "embedding.hpp"
#include "sync/engine_thread.hpp"

namespace {

constexpr int kAnswer = 300, kDump = 300;  // ms

// A line of a stack that says how this package started the program.
bool starts_program(std::string_view line) {
    return line.find("<frozen runpy>") != line.npos || line.find("/rankwise/watch.py") != line.npos ||
           line.find("/rankwise/frontends/watch/command.py") != line.npos;
}

// Without these lines and the code below them.
std::string of_program(const std::string& stacks) {
    std::string text;
    bool skipping = false;
    for (const std::string_view line : rankwise::parts(stacks, "\n")) {
        if (!line.starts_with("    ")) skipping = starts_program(line);
        if (!skipping) text.append(line) += "\n";
    }
    return text;
}

// What faulthandler writes, with the innermost line last and without threads that run no Python.
std::string of_dump(const std::string& dump) {
    std::string text, thread;
    std::vector<std::string> stacks;
    const auto end_thread = [&] {
        if (!thread.empty()) stacks.push_back(std::exchange(thread, ""));
    };
    for (const std::string_view line : rankwise::parts(dump, "\n")) {
        if (!line.starts_with("  ")) end_thread();
        else if (line.starts_with("  File ") && !starts_program(line)) thread = std::string(line) + "\n" + thread;
    }
    end_thread();
    for (const std::string& stack : stacks) text += (stacks.size() > 1 ? "  a thread:\n" : "") + stack;
    return text.empty() ? text : text + "    (in a call that keeps the interpreter's lock)\n";
}

struct WatchedPython final : rankwise::Embedding {
    WatchedPython(int dump, int signal) : dump_(dump), signal_(signal) {}
    bool interrupted() override { return python().interrupted(); }
    std::string call_site() override { return python().call_site(); }

    std::string stacks() override {
        // A thread that has asked for the lock waits until it gets it; one is enough.
        if (!answer_->asked.exchange(true)) {
            rankwise::engine_thread([answer = answer_] {
                std::string text = python().stacks();
                const std::lock_guard lock(answer->mutex);
                answer->text = std::move(text);
                answer->asked.store(false);
            }).detach();
        }
        for (int ms = 0; ms < kAnswer; ++ms) {
            usleep(1000);
            if (answer_->asked.load()) continue;
            const std::lock_guard lock(answer_->mutex);
            return of_program(answer_->text);
        }
        const std::string dump = of_dump(dumped());
        return !dump.empty() ? dump
                             : "none, as Python showed no frame; gdb -p " + std::to_string(getpid()) + " shows where";
    }

private:
    struct Answer {
        std::atomic<bool> asked{false};
        std::mutex mutex;
        std::string text;
    };

    std::string dumped() const {
        if (ftruncate(dump_, 0) != 0 || lseek(dump_, 0, SEEK_SET) != 0 || kill(getpid(), signal_) != 0) return "";
        off_t size = 0;
        for (int ms = 0; ms < kDump; ms += 10) {  // it is complete when it no longer grows
            usleep(10'000);
            const off_t now = lseek(dump_, 0, SEEK_END);
            if (now > 0 && now == size) break;
            size = now;
        }
        std::string text(size_t(size), '\0');
        const ssize_t got = pread(dump_, text.data(), text.size(), 0);
        text.resize(got > 0 ? size_t(got) : 0);
        return text;
    }

    const int dump_, signal_;
    const std::shared_ptr<Answer> answer_ = std::make_shared<Answer>();
};

}  // namespace

rankwise::Embedding& watched_python(int dump, int signal) {
    static auto* const one = new WatchedPython(dump, signal);  // its threads use it until the process has ended
    return *one;
}
