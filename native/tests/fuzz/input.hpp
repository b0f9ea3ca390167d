// What a fuzzer gives to an entry point, read from its beginning. After its end there are zeros.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>

class Input {
public:
    Input(const uint8_t* data, size_t size) : rest_(data, size) {}
    bool ended() const { return rest_.empty(); }
    template <class T> T take() {
        T value{};
        const auto bytes = take_bytes(sizeof value);
        std::memcpy(&value, bytes.data(), bytes.size());
        return value;
    }
    // A number below `limit`, which is at most 2^32.
    size_t below(size_t limit) {
        if (limit <= 1) return 0;
        return (limit <= 256 ? take<uint8_t>() : limit <= 65536 ? take<uint16_t>() : take<uint32_t>()) % limit;
    }
    template <class T> T one_of(std::initializer_list<T> all) { return all.begin()[below(all.size())]; }
    std::span<const uint8_t> take_bytes(size_t most) {
        const auto taken = rest_.first(std::min(most, rest_.size()));
        rest_ = rest_.subspan(taken.size());
        return taken;
    }
    // At most 255 bytes.
    std::string text() {
        const auto bytes = take_bytes(take<uint8_t>());
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    // Overwrites at most 32 bytes somewhere in the memory.
    void overwrite(std::span<uint8_t> memory) {
        const size_t at = below(memory.size()) / 4 * 4;
        const auto bytes = take_bytes(below(33));
        std::copy_n(bytes.begin(), std::min(bytes.size(), memory.size() - at), memory.begin() + ptrdiff_t(at));
    }

private:
    std::span<const uint8_t> rest_;
};
