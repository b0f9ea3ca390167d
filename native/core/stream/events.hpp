// Events, and the program's own streams, identified by numbers. Numbers are looked up in a table and never reused, so a
// wrong number is an error and nothing worse.
#pragma once
#include <cstdint>
#include <memory>

#include "stream/stream.hpp"

namespace rankwise {

// A stream for the program's own work. Its handle never equals kThisThread.
class HostStream : public Stream {
public:
    using Stream::Stream;
    static std::shared_ptr<HostStream> create(Embedding& program = Embedding::none);
    ~HostStream();
    uint64_t handle() const { return handle_; }

private:
    uint64_t handle_ = 0;
};

// Denotes the calling thread in place of a stream. An event recorded on it is reached at once; waiting for an event on
// it blocks the caller.
inline constexpr uint64_t kThisThread = 0;

// All throw BadArgument for a number that is not an event, or not any more.
namespace events {

uint64_t create();
// Streams that wait for the event continue to wait.
void destroy(uint64_t event);
// Records the current end of the stream's queue in the event. Does not change earlier waits for the event.
void record(uint64_t event, uint64_t stream);
void record(uint64_t event, std::shared_ptr<Task> mark);
// The mark recorded last, or nullptr.
std::shared_ptr<Task> mark(uint64_t event);
// Work that is submitted to the stream from now on waits for the mark recorded last, if there is one.
void wait(uint64_t stream, uint64_t event);
// Whether the mark recorded last is reached; true if nothing was recorded.
bool reached(uint64_t event);
// Blocks until the event is reached, at most `timeout` seconds. Throws TimedOut after that, and the error that made the
// event unreachable.
void synchronize(uint64_t event, double timeout);

}  // namespace events

}  // namespace rankwise
