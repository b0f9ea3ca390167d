// The part of DLPack that is used here: how a library lends the memory of its arrays to C code for the time of a call.
// The declarations are those of dlpack.h 1.3 (https://github.com/dmlc/dlpack, Apache License 2.0), in our style.
#pragma once
#include <cstdint>

namespace dlpack {

enum DeviceType : int32_t { kCpu = 1 };

enum TypeCode : uint8_t {
    kInt = 0,
    kUInt = 1,
    kFloat = 2,
    kBfloat = 4,
    kComplex = 5,
    kBool = 6,
    kFloat8E4M3FN = 10,
    kFloat8E5M2 = 12
};

struct Device {
    DeviceType type;
    int32_t id;
};

struct DataType {
    TypeCode code;
    uint8_t bits;
    uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    int32_t dims;
    DataType dtype;
    int64_t* shape;
    int64_t* strides;  // in elements
    uint64_t byte_offset;
};

// What a type's attribute __dlpack_c_exchange_api__, a capsule of the name kExchangeName, points to.
struct ExchangeHeader {
    uint32_t major, minor;
    ExchangeHeader* previous;  // an older version, or null
};

using TensorOfObject = int (*)(void* object, Tensor* tensor);  // 0, or -1 with a Python exception

struct Exchange {
    ExchangeHeader header;
    void* managed_tensor_allocator;
    void* managed_tensor_from_py_object_no_sync;
    void* managed_tensor_to_py_object_no_sync;
    TensorOfObject dltensor_from_py_object_no_sync;  // the tensor is valid as long as the object; may be null
    void* current_work_stream;
};

inline constexpr uint32_t kMajor = 1;
inline constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kExchangeName = "dlpack_exchange_api";

}  // namespace dlpack
