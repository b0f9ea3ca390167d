#include "job.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "base/text.hpp"
#include "failure/watcher.hpp"
#include "report.hpp"
#include "site.hpp"

namespace rankwise::capi {

namespace {

// A program without an interpreter: rankwise_at says where it makes its calls.
struct Compiled final : Embedding {
    std::string call_site() override { return capi::call_site(); }
};
Compiled compiled;

std::string variable(const char* name) {
    const char* const text = std::getenv(name);
    return text ? text : "";
}

[[noreturn]] void refuse(const char* name, const std::string& text, const char* expected) {
    throw BadArgument(std::string("environment variable ") + name + "='" + text + "': expected " + expected);
}

template <class T> std::optional<T> number(const char* name, const char* expected) {
    const std::string text = variable(name);
    if (text.empty()) return std::nullopt;
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) refuse(name, text, expected);
    return value;
}
std::optional<int> integer(const char* name) { return number<int>(name, "an integer"); }

std::optional<bool> flag(const char* name) {
    const std::string text = variable(name);
    if (text.empty()) return std::nullopt;
    if (text != "0" && text != "1") refuse(name, text, "1 or 0");
    return text == "1";
}

double timeout() {
    const char* const expected = "seconds above 0";
    const double seconds = number<double>("RANKWISE_TIMEOUT", expected).value_or(300);
    if (!(seconds > 0)) refuse("RANKWISE_TIMEOUT", variable("RANKWISE_TIMEOUT"), expected);
    return seconds;
}

std::string stripped(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t");
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

// The parts between commas, each divided at the first "=".
std::vector<std::pair<std::string, std::string>> pairs(const char* name, const char* expected) {
    std::vector<std::pair<std::string, std::string>> all;
    const std::string text = variable(name);
    for (const std::string_view given : parts(text, ",")) {
        const std::string part(given);
        if (stripped(part).empty()) continue;
        const size_t equals = std::min(part.find('='), part.size());
        all.emplace_back(stripped(part.substr(0, equals)), stripped(part.substr(std::min(equals + 1, part.size()))));
        if (all.back().first.empty() || all.back().second.empty()) refuse(name, text, expected);
    }
    return all;
}

// The thresholds of the tuning file, which the launcher has read: own_cores.flat_reduce=8192,...
std::vector<tuning::NamedValue> thresholds() {
    constexpr const char* kName = "RANKWISE_THRESHOLDS";
    constexpr std::string_view kInvalid = "invalid: ";
    const std::string text = variable(kName);
    if (text.starts_with(kInvalid)) throw BadArgument(text.substr(kInvalid.size()));
    std::vector<tuning::NamedValue> values;
    for (const auto& [key, bytes] : pairs(kName, "what rankwise run sets")) {
        const size_t dot = std::min(key.find('.'), key.size() - 1);
        values.emplace_back(key.substr(0, dot), key.substr(dot + 1), std::strtoull(bytes.c_str(), nullptr, 10));
    }
    return values;
}

Settings settings(int world_size) {
    Settings all;
    all.program = &compiled;
    if (world_size == 1) return all;
    all.forced =
        tuning::parse_forced(pairs("RANKWISE_ALGORITHM", "operation=algorithm, separated by commas"), all.backend);
    all.oversubscribed = flag("RANKWISE_OVERSUBSCRIBED");
    all.single_copy = flag("RANKWISE_DIRECT").value_or(true);
    all.tuning = thresholds();
    tuning::parse_tuning(all.tuning);  // throws for a name that does not exist
    const char* const expected = "a number of bytes of at least 0";
    all.unexpected_bytes = number<uint64_t>("RANKWISE_UNEXPECTED_BYTES", expected).value_or(all.unexpected_bytes);
    return all;
}

// Throws Unsupported if another launcher has started several ranks.
void refuse_other_launchers() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"})
        if (const std::string text = variable(name); std::atoi(text.c_str()) > 1)
            throw Unsupported("init", "shm",
                              std::string(name) + "=" + text + " announces several ranks, which cannot meet without " +
                                  "Python; start them with `rankwise run`, or let a Python rank pass its group.handle");
}

std::shared_ptr<Comm> alone() {
    refuse_other_launchers();
    Settings own = settings(1);
    own.backend = "solo";
    return Comm::join(Segment::create(1), 0, timeout(), Comm::RunsAs::Thread, own);
}

bool is_memory(int fd, const char* name) {
    std::error_code none;
    const std::string target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
    return target.starts_with(std::string("/memfd:") + name + " ");
}

std::shared_ptr<Segment> inherited(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        throw BadArgument("RANKWISE_SEGMENT_FD=" + std::to_string(fd) +
                          ": expected the descriptor of the job's segment, which this process did not inherit; child "
                          "processes of a rank are not ranks");
    return Segment::attach(fd);
}

}  // namespace

std::shared_ptr<Comm> join_job() {
    const std::optional<int> rank = integer("RANKWISE_RANK"), world_size = integer("RANKWISE_WORLD_SIZE");
    const std::optional<int> fd = integer("RANKWISE_SEGMENT_FD");
    if (!rank && !world_size) return alone();
    if (!rank || !world_size || !fd)
        throw BadArgument(
            "RANKWISE_RANK, RANKWISE_WORLD_SIZE and RANKWISE_SEGMENT_FD: expected all or none; `rankwise "
            "run` sets them together");
    if (const int failures = integer("RANKWISE_FAILURES_FD").value_or(-1); is_memory(failures, "rankwise-failures"))
        report_to(failures, *rank);
    if (const int here = integer("RANKWISE_LOCAL_WORLD_SIZE").value_or(*world_size); here != *world_size)
        throw Unsupported("init", "shm",
                          "the launcher started " + std::to_string(here) + " of the " + std::to_string(*world_size) +
                              " ranks on this host; a compiled program joins the ranks of one host only");
    if (const std::string backend = variable("RANKWISE_BACKEND"); !backend.empty() && backend != "shm")
        throw Unsupported("init", backend, "a compiled program uses shm; leave RANKWISE_BACKEND and --backend out");
    const std::shared_ptr<Segment> segment = inherited(*fd);
    if (const auto launcher = integer("RANKWISE_LAUNCHER_PID")) end_with(*launcher);
    return Comm::join(segment, *rank, timeout(), Comm::RunsAs::Process, settings(segment->world_size()),
                      uint32_t(integer("RANKWISE_RESTART").value_or(0)));
}

}  // namespace rankwise::capi
