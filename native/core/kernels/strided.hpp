// Elements of an array that are not contiguous, packed into contiguous memory and back.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rankwise {

// Where the elements of a block are, from its first one on. The order is that of the axes, the last one fastest.
struct StridedLayout {
    static constexpr int kDims = 64;
    // shape, strides: of each axis; strides in bytes.
    StridedLayout(int dims, const int64_t* shape, const int64_t* strides, size_t itemsize);
    bool contiguous() const { return !dims_; }
    // Whether no two elements share memory. False also for some layouts with unusual strides for which it is so.
    bool apart() const;

    // Packs the elements of n blocks of this layout: those from data[i] on go to packed[i]. Blocks that lie next to
    // each other, such as the first and the last column of adjacent rows, are read together.
    void pack(int n, uint8_t* const* packed, uint8_t* const* data) const;
    void unpack(int n, uint8_t* const* packed, uint8_t* const* data) const;

private:
    template <bool packs> void copy(int n, uint8_t* const* packed, uint8_t* const* data) const;
    size_t run_;    // bytes that are contiguous
    int dims_ = 0;  // of the axes around them; adjacent ones with a common stride are one
    int64_t shape_[kDims], strides_[kDims];
};

}  // namespace rankwise
