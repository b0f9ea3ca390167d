// Tests that blocks with any strides are packed in the order of their axes, and unpacked to where they came from.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/strided.hpp"

using namespace rankwise;

namespace {

struct Block {
    size_t itemsize;
    std::vector<int64_t> shape, strides;
    int64_t first = 0, bytes = 0;  // where its first element is in the memory, and the length of that

    StridedLayout layout() const { return {int(shape.size()), shape.data(), strides.data(), itemsize}; }
    // Where each element is, in the order of the axes.
    std::vector<int64_t> places() const {
        std::vector<int64_t> found{first};
        for (size_t i = 0; i < shape.size(); ++i) {
            std::vector<int64_t> next;
            for (int64_t at : found)
                for (int64_t j = 0; j < shape[i]; ++j) next.push_back(at + j * strides[i]);
            found = next;
        }
        return found;
    }
};

// A view of a larger array whose axes are in another order, with steps, some of them backwards.
Block random_block(std::mt19937& random) {
    const auto below = [&](int n) { return int64_t(random() % unsigned(n)); };
    Block b{size_t(1) << below(5), {}, {}};
    const int dims = int(below(5));
    std::vector<size_t> order(size_t(dims), 0);
    std::iota(order.begin(), order.end(), 0);
    if (below(2)) std::shuffle(order.begin(), order.end(), random);
    b.shape.resize(size_t(dims)), b.strides.resize(size_t(dims));
    b.bytes = int64_t(b.itemsize);
    for (size_t axis : order) {  // the fastest first
        const int64_t step = below(3) ? 1 : 1 + below(3), length = below(8) ? 1 + below(5) : below(2);
        b.shape[axis] = length;
        b.strides[axis] = b.bytes * step;
        b.bytes *= std::max<int64_t>(length, 1) * step + (below(3) ? 0 : 1);
        if (length > 1 && !below(4)) {
            b.first += b.strides[axis] * (length - 1);
            b.strides[axis] *= -1;
        }
    }
    return b;
}

void packed_and_back(const Block& b, unsigned seed) {
    const std::vector<int64_t> places = b.places();
    std::vector<uint8_t> memory(size_t(b.bytes) * 2), packed(places.size() * b.itemsize), other(packed.size());
    std::iota(memory.begin(), memory.end(), uint8_t(1));
    const StridedLayout layout = b.layout();
    CHECK(layout.apart(), "seed " << seed << ": its elements have memory of their own");
    uint8_t *const data[] = {memory.data() + b.first, memory.data() + b.bytes + b.first}, *const rooms[] = {
                                                                                              packed.data(),
                                                                                              other.data()};
    layout.pack(2, rooms, data);
    for (size_t i = 0; i < places.size(); ++i)
        for (int block : {0, 1})
            CHECK(!std::memcmp(rooms[block] + i * b.itemsize, memory.data() + block * b.bytes + places[i], b.itemsize),
                  "seed " << seed << ": element " << i << " of block " << block);
    std::vector<uint8_t> want = memory;
    for (auto& byte : other) byte = uint8_t(~byte);
    for (size_t i = 0; i < places.size(); ++i)
        std::memcpy(want.data() + places[i], other.data() + i * b.itemsize, b.itemsize);
    uint8_t* const from = other.data();
    layout.unpack(1, &from, data);
    CHECK(memory == want, "seed " << seed << ": unpacked");
}

}  // namespace

int main() {
    for (unsigned seed = 0; seed < 2000; ++seed) {
        std::mt19937 random(seed);
        packed_and_back(random_block(random), seed);
    }

    const int64_t shape[] = {3, 4}, rows[] = {32, 8}, columns[] = {8, 24}, same[] = {0, 8}, close[] = {4, 16};
    CHECK(StridedLayout(2, shape, rows, 8).contiguous(), "rows");
    CHECK(!StridedLayout(2, shape, columns, 8).contiguous(), "columns first");
    CHECK(StridedLayout(2, shape, columns, 8).apart(), "columns first");
    CHECK(!StridedLayout(2, shape, same, 8).apart(), "a row repeated");
    CHECK(!StridedLayout(2, shape, close, 8).apart(), "elements that overlap");
    CHECK(StridedLayout(0, shape, rows, 8).contiguous(), "no axis");
    return check::result();
}
