#include "report.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace rankwise::capi {

namespace {

constexpr size_t kRoom = 1 << 20;  // bytes of a rank's report

struct {
    std::mutex mutex;
    int fd = -1, rank = 0, pid = 0;
    std::string uncaught = "null", latest = "null";  // JSON
} place;

std::string quoted(const std::string& text) {
    std::string json = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') (json += '\\') += c;
        else if (static_cast<unsigned char>(c) >= ' ') json += c;
        else {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            json += escape;
        }
    }
    return json + "\"";
}

std::string json_of(const Failure& failure) {
    std::string ranks;
    for (const auto& [rank, call] : failure.ranks)
        add_to_list(ranks, quoted(std::to_string(rank)) + ": {\"call\": " + quoted(call) + "}");
    std::string json = "{\"kind\": " + quoted(failure.kind) + ", \"message\": " + quoted(failure.message) +
                       ", \"sequence\": " + std::to_string(failure.sequence) + ", \"ranks\": {" + ranks + "}";
    if (failure.to_blame >= 0) json += ", \"to_blame\": [" + std::to_string(failure.to_blame) + "]";
    return quoted(json + "}");  // a text within the text
}

void write(std::string& where, const Failure& failure) {
    const std::lock_guard lock(place.mutex);
    if (place.fd < 0 || place.pid != getpid()) return;  // nobody reads it, or a fork, which is not the rank
    where = json_of(failure);
    std::string line = "[" + place.uncaught + ", " + place.latest + "]";
    if (line.size() >= kRoom) return;
    line += '\0';
    if (pwrite(place.fd, line.data(), line.size(), off_t(kRoom) * place.rank) < 0) place.fd = -1;
}

}  // namespace

void report_to(int fd, int rank) {
    const std::lock_guard lock(place.mutex);
    place.fd = fd;
    place.rank = rank;
    place.pid = getpid();
}
void report_failure(const Failure& failure) { write(place.latest, failure); }
void report_end(const Failure& error) { write(place.uncaught, error); }

}  // namespace rankwise::capi
