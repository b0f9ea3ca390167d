// The data of the ranks in the tests of collectives. The numbers repeat after kPeriod elements, so that arrays are
// filled and compared by memcpy and memcmp, which a sanitizer checks much faster than it checks each element's access.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace numbers {

constexpr uint64_t kPeriod = 101;

// Element i of rank r's data: small integers, so that float sums are exact.
inline float value(int r, uint64_t i) { return float((i * 7 + uint64_t(r) * 3) % kPeriod) - 50; }

// Element i of the sum over `n` ranks, from rank `first` on.
inline float total(int n, uint64_t i, int first = 0) {
    float sum = 0;
    for (int r = 0; r < n; ++r) sum += value(first + r, i);
    return sum;
}

// An infinite array whose element i is f(i); f must repeat after kPeriod elements.
class Run {
public:
    template <class F> explicit Run(F&& f) {
        for (uint64_t i = 0; i < kPeriod; ++i) piece_[i] = f(i);
        for (uint64_t i = kPeriod; i < piece_.size(); i += kPeriod)
            std::memcpy(&piece_[i], piece_.data(), kPeriod * sizeof(float));
    }
    // Copies `count` elements, from its element `from` on.
    void fill(float* to, uint64_t count, uint64_t from = 0) const {
        pieces(count, from, [&](uint64_t at, const float* piece, uint64_t length) {
            std::memcpy(to + at, piece, length * sizeof(float));
            return true;
        });
    }
    // Whether `count` elements of x equal its elements from `from` on, bit by bit.
    bool equals(const float* x, uint64_t count, uint64_t from = 0) const {
        return pieces(count, from, [&](uint64_t at, const float* piece, uint64_t length) {
            return std::memcmp(x + at, piece, length * sizeof(float)) == 0;
        });
    }
    std::vector<float> first(uint64_t count) const {
        std::vector<float> v(count);
        fill(v.data(), count);
        return v;
    }

private:
    template <class Each> bool pieces(uint64_t count, uint64_t from, Each&& each) const {
        constexpr uint64_t most = (kPeriods - 1) * kPeriod;
        for (uint64_t at = 0; at < count; at += most)
            if (!each(at, &piece_[from % kPeriod], count - at < most ? count - at : most)) return false;
        return true;
    }

    static constexpr uint64_t kPeriods = 11;
    std::array<float, kPeriods * kPeriod> piece_;
};

inline Run of(int rank) {
    return Run([rank](uint64_t i) { return value(rank, i); });
}
inline Run sum_of(int n, int first = 0) {
    return Run([n, first](uint64_t i) { return total(n, i, first); });
}

}  // namespace numbers
