#include "base/copy.hpp"
#include "kernels/strided.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace rankwise {

StridedLayout::StridedLayout(int dims, const int64_t* shape, const int64_t* strides, size_t itemsize) : run_(itemsize) {
    const bool empty = std::find(shape, shape + dims, 0) != shape + dims;
    if (empty) run_ = 0;
    for (int i = dims - 1; i >= 0 && !empty; --i) {
        if (shape[i] == 1) continue;
        if (!dims_ && strides[i] == int64_t(run_)) {
            run_ *= size_t(shape[i]);
        } else if (dims_ && strides[i] == strides_[dims_ - 1] * shape_[dims_ - 1]) {
            shape_[dims_ - 1] *= shape[i];
        } else {
            shape_[dims_] = shape[i];
            strides_[dims_++] = strides[i];
        }
    }
    std::reverse(shape_, shape_ + dims_);
    std::reverse(strides_, strides_ + dims_);
}

// So it is if each axis steps over all that those with smaller strides span.
bool StridedLayout::apart() const {
    int order[kDims];
    std::iota(order, order + dims_, 0);
    std::sort(order, order + dims_, [&](int a, int b) { return std::abs(strides_[a]) < std::abs(strides_[b]); });
    auto span = int64_t(run_);
    for (int i = 0; i < dims_; ++i) {
        const int64_t stride = std::abs(strides_[order[i]]);
        if (stride < span) return false;
        span += stride * (shape_[order[i]] - 1);
    }
    return true;
}

namespace {

// The runs of the last axis of each block. Size: of a run, or 0 if it is only known at run time.
template <size_t Size, bool packs>
void copy_axis(int n, uint8_t* const* packed, uint8_t* const* data, size_t packed_at, int64_t data_at, int64_t length,
               int64_t stride, size_t run) {
    const size_t bytes = Size ? Size : run;
    for (int64_t i = 0; i < length; ++i, packed_at += bytes, data_at += stride)
        for (int block = 0; block < n; ++block) {
            uint8_t *const there = packed[block] + packed_at, *const here = data[block] + data_at;
            if (packs) copy_bytes(there, here, bytes);
            else copy_bytes(here, there, bytes);
        }
}

}  // namespace

template <bool packs> void StridedLayout::copy(int n, uint8_t* const* packed, uint8_t* const* data) const {
    const auto axis = [&] {
        switch (run_) {
        case 1: return &copy_axis<1, packs>;
        case 2: return &copy_axis<2, packs>;
        case 4: return &copy_axis<4, packs>;
        case 8: return &copy_axis<8, packs>;
        case 16: return &copy_axis<16, packs>;
        default: return &copy_axis<0, packs>;
        }
    }();
    if (!dims_) return axis(n, packed, data, 0, 0, 1, 0, run_);
    const int64_t length = shape_[dims_ - 1], stride = strides_[dims_ - 1];
    int64_t index[kDims] = {}, data_at = 0;
    for (size_t packed_at = 0;; packed_at += size_t(length) * run_) {
        axis(n, packed, data, packed_at, data_at, length, stride, run_);
        int i = dims_ - 2;
        for (; i >= 0; --i) {
            data_at += strides_[i];
            if (++index[i] < shape_[i]) break;
            data_at -= strides_[i] * shape_[i];
            index[i] = 0;
        }
        if (i < 0) return;
    }
}

void StridedLayout::pack(int n, uint8_t* const* packed, uint8_t* const* data) const { copy<true>(n, packed, data); }
void StridedLayout::unpack(int n, uint8_t* const* packed, uint8_t* const* data) const { copy<false>(n, packed, data); }

}  // namespace rankwise
