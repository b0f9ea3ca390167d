// Private memory aligned for any element and for whole cache lines.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

#include "base/sizes.hpp"

namespace rankwise {

// Its content is undefined at first.
class Memory {
public:
    Memory() = default;
    explicit Memory(uint64_t bytes) : bytes_(new(std::align_val_t(kCacheLine)) uint8_t[bytes ? bytes : 1]) {}
    uint8_t* data() const { return bytes_.get(); }
    explicit operator bool() const { return bool(bytes_); }

private:
    struct Free {
        void operator()(uint8_t* bytes) const { operator delete[](bytes, std::align_val_t(kCacheLine)); }
    };
    std::unique_ptr<uint8_t[], Free> bytes_;
};

}  // namespace rankwise
