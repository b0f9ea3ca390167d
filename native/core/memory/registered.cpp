#include "memory/registered.hpp"

#include <unistd.h>

#include <algorithm>

namespace rankwise {

Registered::Registered(std::shared_ptr<Segment> segment, size_t bytes)
    : segment_(std::move(segment)), bytes_(bytes), offset_(segment_->allocate(std::max<size_t>(bytes, 1), BlockKind::Buffer)), owner_(getpid()) {}

Registered::~Registered() {
    if (getpid() == owner_) segment_->release(offset_);
}

}  // namespace rankwise
