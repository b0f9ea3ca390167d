// How a buffer is divided into one block per rank.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/sizes.hpp"

namespace rankwise {

using Counts = std::vector<uint64_t>;  // one for each rank

class Blocks {
public:
    // n equal blocks of `count` items each. Throws BadArgument, as the next does, if they do not fit into an address
    // space.
    Blocks(int n, uint64_t count, size_t item) : n_(n), each_(count * item) { checked_bytes(count, item * size_t(n)); }
    // Block j holds counts[j] items; the blocks follow each other without gaps.
    Blocks(const uint64_t* counts, int n, size_t item) : n_(n), each_(0), bounds_(size_t(n) + 1) {
        for (int j = 0; j < n; ++j) bounds_[j + 1] = checked_bytes(bounds_[j] + checked_bytes(counts[j], item));
    }
    int n() const { return n_; }
    size_t offset(int j) const { return bounds_.empty() ? each_ * size_t(j) : bounds_[j]; }
    size_t size(int j) const { return bounds_.empty() ? each_ : bounds_[j + 1] - bounds_[j]; }
    bool equal() const { return bounds_.empty(); }
    size_t total() const { return bounds_.empty() ? each_ * size_t(n_) : bounds_[n_]; }
    size_t largest() const {
        size_t most = bounds_.empty() ? each_ : 0;
        for (int j = 0; j < n_ && !bounds_.empty(); ++j) most = std::max(most, size(j));
        return most;
    }

private:
    int n_;
    size_t each_;
    std::vector<size_t> bounds_;  // empty if the blocks are equal
};

// One share per rank, in whole cache lines; the last shares may be short or empty.
struct Shares {
    size_t bytes, each;
    Shares(size_t bytes, int n) : bytes(bytes), each(((bytes + n - 1) / n + 63) / 64 * 64) {}
    size_t begin(int r) const { return std::min(bytes, each * size_t(r)); }
    size_t end(int r) const { return std::min(bytes, each * size_t(r + 1)); }
};

// Piece number k of `size` bytes that are divided into pieces of `piece` bytes; it may be empty.
struct Piece {
    size_t offset, bytes;
    Piece(uint64_t k, size_t piece, size_t size)
        : offset(std::min<size_t>(k * piece, size)), bytes(std::min(piece, size - offset)) {}
};

inline uint64_t rounds_of(size_t bytes, size_t piece) { return (bytes + piece - 1) / piece; }

}  // namespace rankwise
