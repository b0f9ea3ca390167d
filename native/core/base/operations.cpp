#include "base/operations.hpp"

#include "base/errors.hpp"
#include "base/mix.hpp"

namespace rankwise {

Op op_named(const std::string& name) {
    for (const OperationRow& row : kOperations)
        if (name == row.name) return row.op;
    throw BadArgument("operation: " + name + " given, expected one of the contract's");
}

uint64_t Description::digest() const {
    uint64_t result = mix(0x5eed, uint64_t(operation) << 8 | uint64_t(dims));
    for (int i = 0; i < dims; ++i) result = mix(result, uint64_t(dim[i]));
    return result | 1;
}

std::string Call::to_string() const {
    std::string text = name(op());
    if (!has(kElements)) return text + (has(kRoot) ? "(root=" + std::to_string(root()) + ")" : "()");
    text += has(kCounts) ? "(counts#" : has(kRow) ? "(row=" : "(count=";
    text += std::to_string(has(kCounts) ? amount % 100000 : amount);
    text += std::string(", dtype=") + name(dtype());
    if (has(kReduction)) text += std::string(", op=") + name(reduce());
    if (has(kRoot)) text += ", root=" + std::to_string(root());
    return text + ")";
}

}  // namespace rankwise
