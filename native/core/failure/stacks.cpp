#include "failure/stacks.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "stream/stream.hpp"

namespace rankwise {

std::string (*program_stacks)() = [] { return std::string(); };

namespace {

constexpr size_t kText = 32 << 10;
constexpr std::chrono::seconds kAnswerWithin{1};

// The last line of a text that is cut still begins a line.
std::string tail(const std::string& text) {
    if (text.size() < kText) return text;
    const size_t line = text.find('\n', text.size() - kText + 5);
    return "...\n" + text.substr(line == std::string::npos ? text.size() - kText + 5 : line + 1);
}

// The pipe behind /proc/PID/fd/N, if it still is that pipe.
int open_pipe(const std::string& process, int fd, uint64_t inode, int how) {
    const std::string path = "/proc/" + process + "/fd/" + std::to_string(fd);
    const int pipe = open(path.c_str(), how | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    if (pipe >= 0 && fstat(pipe, &info) == 0 && S_ISFIFO(info.st_mode) && uint64_t(info.st_ino) == inode) return pipe;
    if (pipe >= 0) close(pipe);
    return -1;
}

bool notify(const RankRecord& r) {
    const int pipe = open_pipe(std::to_string(r.pid.load()), r.doorbell.load() - 1, r.doorbell_inode.load(), O_WRONLY);
    if (pipe < 0) return false;
    const bool seen = write(pipe, "", 1) == 1;
    close(pipe);
    return seen;
}

bool is_stopped(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const size_t state = text.rfind(')');  // the command before it may contain anything
    return state != std::string::npos && state + 2 < text.size() && (text[state + 2] == 'T' || text[state + 2] == 't');
}

void answer(Segment& segment, RankRecord& r) {
    for (uint32_t asked; (asked = r.stacks_asked.load()) != r.stacks_told.load();) {
        const std::string text = tail(program_stacks());
        if (!r.stacks.load()) r.stacks.store(segment.allocate(kText, BlockKind::Buffer));
        std::memcpy(segment.at<char>(r.stacks.load()), text.c_str(), text.size() + 1);
        r.stacks_told.store(asked);
    }
}

}  // namespace

int open_doorbell(Segment& segment, int rank) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return -1;
    // One descriptor for both ends: the pipe never hangs up, and takes no second one.
    struct stat info;
    const int both = fstat(ends[0], &info) == 0 ? open_pipe("self", ends[0], info.st_ino, O_RDWR) : -1;
    close(ends[0]);
    close(ends[1]);
    if (both < 0) return -1;
    RankRecord& r = segment.record(rank);
    r.doorbell_inode.store(info.st_ino);
    r.doorbell.store(both + 1);
    return both;
}

void answer_doorbell(const std::shared_ptr<Segment>& segment, int rank, int doorbell) {
    char bytes[64];
    while (read(doorbell, bytes, sizeof bytes) > 0) {}
    // The watcher must not wait for the program, which may never let its interpreter go.
    static std::atomic<bool> answering{false};
    if (answering.exchange(true)) return;
    engine_thread([segment, rank] {
        RankRecord& r = segment->record(rank);
        do {
            try {
                answer(*segment, r);
            } catch (const Error&) {  // no memory in the segment: who asked gives up in a moment
                answering.store(false);
                return;
            }
            answering.store(false);
        } while (r.stacks_asked.load() != r.stacks_told.load() && !answering.exchange(true));
    }).detach();
}

Calls ask_for_stacks(Segment& segment, const std::vector<int>& ranks) {
    std::vector<std::pair<int, uint32_t>> asked;  // rank, number of the question
    for (int rank : ranks) {
        RankRecord& r = segment.record(rank);
        if (!r.doorbell.load() || r.exited.load()) continue;
        asked.emplace_back(rank, r.stacks_asked.fetch_add(1) + 1);
        notify(r);
    }
    Calls said;
    const auto until = Clock::now() + kAnswerWithin;
    for (const auto& [rank, question] : asked) {
        const RankRecord& r = segment.record(rank);
        const int pid = r.pid.load();
        const auto answered = [&, question = question] { return int32_t(r.stacks_told.load() - question) >= 0; };
        while (!answered() && !r.exited.load() && !is_stopped(pid) && Clock::now() < until) usleep(500);
        if (answered()) {
            const char* text = segment.at<char>(r.stacks.load());
            const size_t length = strnlen(text, kText);
            if (length > 0) said.emplace_back(rank, std::string(text, length));  // none of an interpreter that shuts down
        } else if (is_stopped(pid)) {
            said.emplace_back(rank, "its process is stopped; kill -CONT " + std::to_string(pid) + " lets it go on");
        } else if (!r.exited.load()) {
            said.emplace_back(rank, "no answer: its process is in native code that holds the interpreter; gdb -p " + std::to_string(pid) + " shows where");
        }
    }
    return said;
}

}  // namespace rankwise
