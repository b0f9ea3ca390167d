#include "tensors.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

using namespace rankwise;

namespace {

// What torch's tensors have besides their memory, called without look-ups, which would take as long as a short message.
// If the neg bit of a tensor is set, its elements are the negatives of what its memory contains; if the conj bit is
// set, their conjugates.
struct Torch {
    const PyGetSetDef* requires_grad;
    PyCFunction is_neg, is_conj;
    PyObject* increment_version;

    bool is_plain(PyObject* tensor, dlpack::DataType dtype) const {
        return is_false(requires_grad->get(tensor, requires_grad->closure)) && is_false(is_neg(tensor, nullptr)) &&
               (dtype.code != dlpack::kComplex || is_false(is_conj(tensor, nullptr)));
    }
    bool known() const { return requires_grad && is_neg && is_conj; }

private:
    static bool is_false(PyObject* answer) { return nb::steal(answer).ptr() == Py_False; }
};

// A type that has the attribute itself, and the function of its library.
struct TensorType {
    PyTypeObject* type;
    dlpack::TensorOfObject tensor_of;
    std::optional<Torch> torch;  // of torch's tensors
};

std::array<std::atomic<const TensorType*>, 8> known_types;  // filled from the front, and kept to the end

// Null unless the type, rather than a class that it derives from, has the attribute.
dlpack::TensorOfObject function_of(PyTypeObject* type) {
    static PyObject* const attribute = PyUnicode_InternFromString(dlpack::kExchangeAttribute);
    PyObject* capsule = type->tp_dict ? PyDict_GetItemWithError(type->tp_dict, attribute) : nullptr;
    if (!capsule || !PyCapsule_IsValid(capsule, dlpack::kExchangeName)) return nullptr;
    auto* header = static_cast<dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule, dlpack::kExchangeName));
    while (header && header->major != dlpack::kMajor) header = header->previous;
    return header ? reinterpret_cast<dlpack::Exchange*>(header)->dltensor_from_py_object_no_sync : nullptr;
}

bool is_torch(PyTypeObject* type) {
    const nb::object torch = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch"));
    return torch.is_valid() && nb::getattr(torch, "Tensor", nb::none()).is(nb::handle(type));
}

// The function of a C type's method without arguments; null for any other.
PyCFunction method_of(PyTypeObject* type, const char* name) {
    const nb::object found = nb::getattr(nb::handle(type), name, nb::none());
    if (!Py_IS_TYPE(found.ptr(), &PyMethodDescr_Type)) return nullptr;
    const PyMethodDef* method = reinterpret_cast<PyMethodDescrObject*>(found.ptr())->d_method;
    return method->ml_flags == METH_NOARGS ? method->ml_meth : nullptr;
}

const PyGetSetDef* attribute_of(PyTypeObject* type, const char* name) {
    const nb::object found = nb::getattr(nb::handle(type), name, nb::none());
    const bool known = Py_IS_TYPE(found.ptr(), &PyGetSetDescr_Type);
    return known ? reinterpret_cast<PyGetSetDescrObject*>(found.ptr())->d_getset : nullptr;
}

Torch torch_of(PyTypeObject* type) {
    return {attribute_of(type, "requires_grad"), method_of(type, "is_neg"), method_of(type, "is_conj"),
            nb::module_::import_("torch._C").attr("_increment_version").inc_ref().ptr()};
}

// Null if the type's tensors are for the general path.
std::unique_ptr<const TensorType> description_of(PyTypeObject* type) {
    const dlpack::TensorOfObject tensor_of = function_of(type);
    if (!tensor_of) return nullptr;
    std::optional<Torch> torch;
    if (is_torch(type) && !torch.emplace(torch_of(type)).known()) return nullptr;
    Py_INCREF(type);
    return std::make_unique<const TensorType>(type, tensor_of, torch);
}

const TensorType* type_of(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    for (auto& each : known_types) {
        const TensorType* known = each.load(std::memory_order_acquire);
        if (!known) {
            auto made = description_of(type);
            if (!made) return nullptr;
            if (each.compare_exchange_strong(known, made.get())) return made.release();
        }
        if (known->type == type) return known;
    }
    return nullptr;
}

constexpr uint32_t number(dlpack::DataType t) { return uint32_t(t.lanes) << 16 | uint32_t(t.code) << 8 | t.bits; }
constexpr uint32_t number(dlpack::TypeCode code, uint8_t bits) { return number({code, bits, 1}); }

int dtype_of(dlpack::DataType t) {
    switch (number(t)) {
    case number(dlpack::kFloat, 64): return int(DType::F64);
    case number(dlpack::kFloat, 32): return int(DType::F32);
    case number(dlpack::kFloat, 16): return int(DType::F16);
    case number(dlpack::kBfloat, 16): return int(DType::BF16);
    case number(dlpack::kFloat8E4M3FN, 8): return int(DType::FP8E4M3);
    case number(dlpack::kFloat8E5M2, 8): return int(DType::FP8E5M2);
    case number(dlpack::kInt, 64): return int(DType::I64);
    case number(dlpack::kInt, 32): return int(DType::I32);
    case number(dlpack::kInt, 16): return int(DType::I16);
    case number(dlpack::kInt, 8): return int(DType::I8);
    case number(dlpack::kUInt, 64): return int(DType::U64);
    case number(dlpack::kUInt, 32): return int(DType::U32);
    case number(dlpack::kUInt, 16): return int(DType::U16);
    case number(dlpack::kUInt, 8): return int(DType::U8);
    case number(dlpack::kBool, 8): return int(DType::BOOL);
    case number(dlpack::kComplex, 64): return int(DType::C64);
    case number(dlpack::kComplex, 128): return int(DType::C128);
    default: return -1;
    }
}

bool contiguous(const dlpack::Tensor& t) {
    int64_t elements = 1;
    for (int i = t.dims - 1; i >= 0; --i) {
        if (t.shape[i] != 1 && t.strides[i] != elements) return false;
        elements *= t.shape[i];
    }
    return true;
}

}  // namespace

BorrowedTensor::BorrowedTensor(nb::handle object, Access access) {
    const TensorType* type = type_of(object.ptr());
    if (!type || (access == Access::Write && !type->torch)) return;
    dlpack::Tensor& t = memory;
    if (type->tensor_of(object.ptr(), &t) || (type->torch && !type->torch->is_plain(object.ptr(), t.dtype))) {
        PyErr_Clear();  // the general path finds the same, and says what it is
        return;
    }
    const int found = dtype_of(t.dtype);
    if (t.device.type != dlpack::kCpu || found < 0 || !contiguous(t)) return;
    t.data = static_cast<uint8_t*>(t.data) + t.byte_offset;
    const bool empty = std::find(t.shape, t.shape + t.dims, 0) != t.shape + t.dims;
    const size_t alignment = std::min(itemsize(DType(found)), alignof(double));
    if ((!t.data && !empty) || reinterpret_cast<uintptr_t>(t.data) % alignment) return;
    dtype = found;
    has_version = type->torch.has_value();
}

void mark_written(nb::handle tensor) {
    const nb::object tensors = nb::steal(PyTuple_Pack(1, tensor.ptr()));
    PyObject* increment_version = type_of(tensor.ptr())->torch->increment_version;
    if (!tensors.is_valid() || !nb::steal(PyObject_CallOneArg(increment_version, tensors.ptr())).is_valid())
        nb::raise_python_error();
}
