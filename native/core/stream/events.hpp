// Events, and streams of the program's own, by number. A number is looked up in a table and never
// given out twice, so that a wrong one is an error and nothing worse.
#pragma once
#include <cstdint>
#include <memory>

#include "stream/stream.hpp"

namespace rankwise {

// A stream for the program's own work. Its handle is never kThisThread.
class HostStream : public Stream {
public:
    static std::shared_ptr<HostStream> create();
    ~HostStream();
    uint64_t handle() const { return handle_; }

private:
    uint64_t handle_ = 0;
};

// In the place of a stream: what the calling thread itself has done. Recorded on it, an event is
// reached at once; waiting for an event on it blocks the caller.
inline constexpr uint64_t kThisThread = 0;

// All throw BadArgument for a number that is no event, or no longer one.
namespace events {

uint64_t create();
// What waits for it goes on waiting.
void destroy(uint64_t event);
// From now on the event stands for the present end of the stream's queue; earlier waits stay as they are.
void record(uint64_t event, uint64_t stream);
void record(uint64_t event, std::shared_ptr<Task> mark);
// What was recorded last, or nullptr.
std::shared_ptr<Task> mark(uint64_t event);
// What is submitted to the stream after this waits for what was recorded last; if nothing was, it does not.
void wait(uint64_t stream, uint64_t event);
// Whether what was recorded last is reached, or nothing was recorded.
bool reached(uint64_t event);
// Blocks until then, at most `timeout` seconds. TimedOut past it; what made it unreachable.
void synchronize(uint64_t event, double timeout);

}  // namespace events

}  // namespace rankwise
