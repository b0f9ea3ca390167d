// The tensors of libraries that lend their memory through DLPack's C exchange API, as torch does from 2.10 on: without
// a call of Python code, and without an allocation.
#pragma once
#include "dlpack.hpp"
#include "bindings.hpp"

// What a call does to an array.
enum class Access : bool { Read, Write };

// A tensor of such a library, if its memory is plain: contiguous and aligned, in the host, and of a dtype that ranks
// can exchange. Subclasses are not: they may have state besides their memory. Nor are tensors that autograd follows.
struct BorrowedTensor {
    dlpack::Tensor memory{};
    int dtype = -1;            // -1: it is not plain
    bool has_version = false;  // autograd is to be notified that it was written

    // Whether the program may write it, DLPack does not tell; so this is known of torch's tensors alone.
    BorrowedTensor(nb::handle object, Access access);
};

// Notify autograd that a tensor was written, so that a backward pass that needs its old content raises.
void mark_written(nb::handle tensor);
