// Digests of words, which ranks compare in place of the words.
#pragma once
#include <cstdint>

namespace rankwise {

// The digest of the words so far and one more. The multiplication spreads every bit upwards, the shift downwards.
constexpr uint64_t mix(uint64_t digest, uint64_t word) {
    const uint64_t product = (digest ^ word) * 0x9e3779b97f4a7c15;
    return product ^ product >> 32;
}

// Of several numbers, and how many they are.
template <class Numbers> constexpr uint64_t digest(const Numbers& numbers) {
    uint64_t result = numbers.size();
    for (const auto number : numbers) result = mix(result, uint64_t(number));
    return result;
}

}  // namespace rankwise
