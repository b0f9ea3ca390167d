#include "stream/events.hpp"

#include <string>
#include <unordered_map>

#include "base/errors.hpp"
#include "base/policy.hpp"
#include "sync/forks.hpp"

namespace rankwise {

namespace {

struct Table {
    std::mutex mutex;
    uint64_t last = kThisThread;  // the last number used
    std::unordered_map<uint64_t, std::shared_ptr<Task>> events;
    std::unordered_map<uint64_t, std::weak_ptr<HostStream>> streams;

    [[noreturn]] void refuse(const char* kind, uint64_t number) const {
        std::string text = std::string(kind) + ": " + std::to_string(number) + " given, ";
        if (events.count(number)) text += "which is an event";
        else if (streams.count(number)) text += "which is a stream";
        else if (number > last) text += std::string("which this process has never used for an event or a stream");
        else text += std::string("which is not a valid ") + kind + " any more, or never was";
        throw BadArgument(text);
    }
    std::shared_ptr<Task>& event(uint64_t number) {
        const auto found = events.find(number);
        if (found == events.end()) refuse("event", number);
        return found->second;
    }
    std::shared_ptr<HostStream> stream(uint64_t number) {
        const auto found = streams.find(number);
        auto stream = found == streams.end() ? nullptr : found->second.lock();
        if (!stream) refuse("stream", number);
        return stream;
    }
};

Table& table() {
    static Table& one = *[] {
        lock_around_forks([] { table().mutex.lock(); }, [] { table().mutex.unlock(); });
        return new Table;  // never destroyed, because threads may outlive main
    }();
    return one;
}
using Lock = std::lock_guard<std::mutex>;

std::shared_ptr<HostStream> stream_of(uint64_t number) {
    Lock lock(table().mutex);
    return table().stream(number);
}

}  // namespace

std::shared_ptr<HostStream> HostStream::create(Embedding& program) {
    auto stream = std::make_shared<HostStream>(program);
    Lock lock(table().mutex);
    stream->handle_ = ++table().last;
    table().streams[stream->handle_] = stream;
    return stream;
}

HostStream::~HostStream() {
    Lock lock(table().mutex);
    table().streams.erase(handle_);
}

namespace events {

uint64_t create() {
    Lock lock(table().mutex);
    table().events[++table().last];
    return table().last;
}

void destroy(uint64_t event) {
    Lock lock(table().mutex);
    table().event(event);
    table().events.erase(event);
}

void record(uint64_t event, std::shared_ptr<Task> mark) {
    Lock lock(table().mutex);
    table().event(event).swap(mark);  // the previous mark is released after the lock
}

void record(uint64_t event, uint64_t stream) {
    mark(event);  // throws if there is no such event, before anything is queued
    record(event, stream == kThisThread ? Stream::reached_mark() : stream_of(stream)->mark());
}

std::shared_ptr<Task> mark(uint64_t event) {
    Lock lock(table().mutex);
    return table().event(event);
}

void wait(uint64_t stream, uint64_t event) {
    if (stream == kThisThread) return synchronize(event, std::chrono::duration<double>(kForever).count());
    const auto waiting = stream_of(stream);
    if (auto last = mark(event)) waiting->follow(std::move(last));
}

bool reached(uint64_t event) {
    const auto last = mark(event);
    return !last || last->ended();
}

void synchronize(uint64_t event, double timeout) {
    if (const auto last = mark(event)) last->wait(timeout);
}

}  // namespace events

}  // namespace rankwise
