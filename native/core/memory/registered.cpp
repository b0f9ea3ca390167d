#include "memory/registered.hpp"

namespace rankwise {

Registered::Registered(std::shared_ptr<BufferCache> cache, size_t bytes, Contents contents)
    : cache_(std::move(cache)), bytes_(bytes), offset_(cache_->acquire(bytes, contents)) {}

Registered::~Registered() {
    if (!fork_.is_child()) cache_->give_back(offset_, bytes_);
}

}  // namespace rankwise
