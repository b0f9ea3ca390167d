// The arrays that a call takes without Python code between: NumPy's, and the tensors of libraries that lend their
// memory to C, such as torch.
#pragma once
#include <array>

#include "kernels/strided.hpp"
#include "numpy_arrays.hpp"
#include "tensors.hpp"

// The array in a call, if it is plain: contiguous, aligned, and of a dtype that ranks can exchange. With any
// strides, NumPy's need not be contiguous or aligned.
struct PlainArray {
    uint8_t* data = nullptr;
    uint64_t count = 1;
    int dtype = -1;

    PlainArray() = default;
    enum class Strides : bool { Contiguous, Any };
    PlainArray(nb::handle object, Access access, Strides strides = Strides::Contiguous) {
        if (PyArrayObject* a = as_ndarray(object)) borrow(a, access, strides);
        else if (!object.is_none()) borrow_tensor(object, access);
        for (int i = 0; i < dims_; ++i) count *= uint64_t(dim(i));
    }
    explicit operator bool() const { return dtype >= 0; }
    int dims() const { return dims_; }
    int64_t dim(int i) const { return shape_[i]; }
    const int64_t* shape() const { return shape_; }
    size_t itemsize() const { return rankwise::itemsize(rankwise::DType(dtype)); }
    // Of an array with any strides: where the next element along each axis is, in bytes.
    std::array<int64_t, rankwise::StridedLayout::kDims> strides() const {
        std::array<int64_t, rankwise::StridedLayout::kDims> found;
        auto stride = int64_t(itemsize());
        for (int i = dims_ - 1; i >= 0; stride *= shape_[i--]) found[size_t(i)] = strides_ ? strides_[i] : stride;
        return found;
    }
    rankwise::Description description() const { return {rankwise::Op::None, dims_, shape_}; }
    // Of an array that has an axis 0: the shape of one of its rows, and their number.
    rankwise::Description row_description() const { return {rankwise::Op::None, dims_ - 1, shape_ + 1}; }
    uint64_t rows() const { return uint64_t(shape_[0]); }
    rankwise::Row row() const {
        uint64_t elements = 1;
        for (int i = 1; i < dims_; ++i) elements *= uint64_t(dim(i));
        return {rankwise::DType(dtype), elements};
    }
    size_t bytes() const { return count * itemsize(); }
    bool apart_from(const PlainArray& other) const {
        return data + bytes() <= other.data || other.data + other.bytes() <= data;
    }
    // Whether the shapes are equal without the first `skip` axes of this array and the first `other_skip` axes of
    // `other`.
    bool same_shape(const PlainArray& other, int skip, int other_skip) const {
        if (dims() - skip != other.dims() - other_skip) return false;
        for (int i = skip; i < dims(); ++i)
            if (dim(i) != other.dim(i - skip + other_skip)) return false;
        return true;
    }
    // Whether autograd must be notified of a write: whoever has written the array, and holds the GIL again, calls
    // `written`, which returns true.
    bool has_version() const { return tensor_.is_valid(); }
    bool written() const {
        if (has_version()) mark_written(tensor_);
        return true;
    }

private:
    void borrow(PyArrayObject* a, Access access, Strides strides) {
        const int memory = strides == Strides::Any ? 0 : NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
        const int wanted = memory | (access == Access::Write ? NPY_ARRAY_WRITEABLE : 0);
        if ((PyArray_FLAGS(a) & wanted) != wanted) return;
        dtype = dtype_of(PyArray_DESCR(a));
        data = static_cast<uint8_t*>(PyArray_DATA(a));
        dims_ = PyArray_NDIM(a);
        shape_ = PyArray_DIMS(a);
        if (strides == Strides::Any) strides_ = PyArray_STRIDES(a);
    }
    void borrow_tensor(nb::handle object, Access access) {
        const BorrowedTensor found(object, access);
        if (found.dtype < 0) return;
        dtype = found.dtype;
        data = static_cast<uint8_t*>(found.memory.data);
        dims_ = found.memory.dims;
        shape_ = found.memory.shape;
        if (found.has_version) tensor_ = object;
    }
    int dims_ = 0;
    const int64_t *shape_ = nullptr, *strides_ = nullptr;
    nb::handle tensor_;
};

// Whether `new_like` can make another array of the kind of this one, which is x.
inline bool has_kind(nb::handle array, const PlainArray& x) { return x && (as_ndarray(array) || x.has_version()); }
nb::object tuple_of(const std::vector<uint64_t>& shape);
// A new array of this shape, of the kind and dtype of `array`.
nb::object new_like(nb::handle array, const std::vector<uint64_t>& shape);
// The shape of this many of x's rows.
std::vector<uint64_t> rows_like(uint64_t rows, const PlainArray& x);
// The memory of an array that receives so many bytes.
uint8_t* memory_of(nb::handle array, size_t bytes);
