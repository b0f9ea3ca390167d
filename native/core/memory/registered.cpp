#include "memory/registered.hpp"

#include <unistd.h>

namespace rankwise {

Registered::Registered(std::shared_ptr<BufferCache> cache, size_t bytes, bool zeroed)
    : cache_(std::move(cache)), bytes_(bytes), offset_(cache_->take(bytes, zeroed)), owner_(getpid()) {}

Registered::~Registered() {
    if (getpid() == owner_) cache_->give_back(offset_, bytes_);
}

}  // namespace rankwise
