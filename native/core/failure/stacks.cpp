#include "failure/stacks.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/text.hpp"
#include "sync/engine_thread.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

namespace {

// The end of a text, from the beginning of a line on.
std::string tail(const std::string& text) {
    if (text.size() < kStacksText) return text;
    const size_t line = text.find('\n', text.size() - kStacksText + 5);
    return "...\n" + text.substr(line == std::string::npos ? text.size() - kStacksText + 5 : line + 1);
}

// Opens the pipe behind /proc/PID/fd/N, if the descriptor still is that pipe.
Descriptor open_pipe(const std::string& process, int fd, uint64_t inode, int how) {
    const std::string path = "/proc/" + process + "/fd/" + std::to_string(fd);
    Descriptor pipe(open(path.c_str(), how | O_NONBLOCK | O_CLOEXEC));
    struct stat info;
    const bool found =
        pipe && fstat(pipe.get(), &info) == 0 && S_ISFIFO(info.st_mode) && uint64_t(info.st_ino) == inode;
    return found ? std::move(pipe) : Descriptor(-1);
}

// Whether the process belongs to whoever has made the segment, who could name any other one there to a reader that is
// root.
bool same_owner(const Segment& segment, const std::string& process) {
    struct stat file, folder;
    return fstat(segment.fd(), &file) == 0 && stat(("/proc/" + process).c_str(), &folder) == 0 &&
           file.st_uid == folder.st_uid;
}

void notify(const Segment& segment, const RankRecord& r) {
    const std::string process = std::to_string(r.pid.load().number);
    if (!same_owner(segment, process)) return;
    const Descriptor pipe = open_pipe(process, r.doorbell.load() - 1, r.doorbell_inode.load(), O_WRONLY);
    if (!pipe) return;
    [[maybe_unused]] const ssize_t written = write(pipe.get(), "", 1);  // if it is full, the rank will look anyway
}

// stacks: returns the text.
template <class Stacks> void publish_stacks(Segment& segment, RankRecord& r, const Stacks& stacks) {
    for (uint32_t request; (request = r.stacks_requested.load()) != r.stacks_answered.load();) {
        const std::string text = tail(stacks());
        if (segment.heap().block_bytes(r.stacks.load(), BlockKind::Text) < kStacksText)
            r.stacks.store(segment.heap().allocate(kStacksText, BlockKind::Text));
        std::memcpy(segment.at<char>(r.stacks.load()), text.c_str(), text.size() + 1);
        r.stacks_answered.store(request);
    }
}

}  // namespace

bool is_stopped(int pid) {
    const std::string text = contents("/proc/" + std::to_string(pid) + "/stat");
    const size_t state = text.rfind(')');  // the command name before it may contain anything
    return state != std::string::npos && state + 2 < text.size() && (text[state + 2] == 'T' || text[state + 2] == 't');
}

Descriptor open_doorbell(Segment& segment, int rank) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return Descriptor(-1);
    const Descriptor reads(ends[0]), writes(ends[1]);
    // One descriptor for both ends, so that the pipe never reports a hang-up.
    struct stat info;
    Descriptor both =
        fstat(reads.get(), &info) == 0 ? open_pipe("self", reads.get(), info.st_ino, O_RDWR) : Descriptor(-1);
    if (both) {
        RankRecord& r = segment.record(rank);
        r.doorbell_inode.store(info.st_ino);
        r.doorbell.store(both.get() + 1);
    }
    return both;
}

void answer_doorbell(const std::shared_ptr<Segment>& segment, int rank, int doorbell, Embedding& program,
                     const std::shared_ptr<std::atomic<bool>>& answering) {
    char bytes[64];
    while (read(doorbell, bytes, sizeof bytes) > 0) {
    }
    // The watcher must not wait for the program, which may never release its interpreter.
    if (answering->exchange(true)) return;
    const auto answer_all = [segment, rank, answering](const auto& stacks) {
        RankRecord& r = segment->record(rank);
        do {
            try {
                publish_stacks(*segment, r, stacks);
            } catch (const Error&) {  // the segment has no memory left: the request times out
                answering->store(false);
                return;
            }
            answering->store(false);
        } while (r.stacks_requested.load() != r.stacks_answered.load() && !answering->exchange(true));
    };
    try {
        engine_thread([answer_all, &program] { answer_all([&] { return program.stacks(); }); }).detach();
    } catch (const Error& e) {
        answer_all([&] { return std::string("no stacks: ") + e.what(); });
    }
}

RankTexts request_stacks(Segment& segment, const std::vector<int>& ranks, std::chrono::seconds timeout) {
    RankTexts answers;
    std::vector<std::pair<int, uint32_t>> requests;  // rank, number of the request
    for (int rank : ranks) {
        RankRecord& r = segment.record(rank);
        if (r.doorbell.load() <= 0 || segment.present_process(rank) < 0) continue;
        if (!r.pid.load().in_own_namespace()) {  // in /proc its pid is missing, or another process's
            answers.emplace_back(rank, "no stacks: its process is in another container (PID namespace)");
            continue;
        }
        requests.emplace_back(rank, r.stacks_requested.fetch_add(1) + 1);
        notify(segment, r);
    }
    Waiter waiter(timeout);
    for (const auto& [rank, request] : requests) {
        const RankRecord& r = segment.record(rank);
        const int pid = r.pid.load().number;
        const auto lives = [&, rank = rank] { return segment.present_process(rank) >= 0; };
        const auto answered = [&, request = request] { return int32_t(r.stacks_answered.load() - request) >= 0; };
        waiter.check_every(std::chrono::microseconds(500), [&] { return answered() || !lives() || is_stopped(pid); });
        if (answered()) {
            const uint64_t stacks = r.stacks.load();
            const size_t length = strnlen(segment.at<char>(stacks),
                                          std::min(kStacksText, segment.heap().block_bytes(stacks, BlockKind::Text)));
            if (length > 0)
                answers.emplace_back(
                    rank, std::string(segment.at<char>(stacks), length));  // empty while the interpreter shuts down
        } else if (is_stopped(pid)) {
            answers.emplace_back(rank, "its process is stopped; kill -CONT " + std::to_string(pid) + " resumes it");
        } else if (lives()) {
            answers.emplace_back(rank, "no answer: its process is in native code that holds the interpreter; gdb -p " +
                                           std::to_string(pid) + " shows where");
        }
    }
    return answers;
}

}  // namespace rankwise
