// Declarations that the binding files share.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "comm.hpp"
#include "gil.hpp"

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_embedding(nb::module_& m);
void bind_segment(nb::module_& m);
void bind_comm(nb::module_& m);
void bind_arrays(nb::module_& m);
void bind_plain_pickle(nb::module_& m);
void bind_streams(nb::module_& m);
void bind_trace(nb::module_& m);
void bind_totals(nb::module_& m);
void bind_registered(nb::module_& m);
void bind_words(nb::module_& m);
void bind_jax(nb::module_& m);

nb::dict by_rank(const rankwise::RankTexts& texts);  // {rank: text}

using Address = uint64_t;
inline void* pointer(Address address) { return reinterpret_cast<void*>(address); }

inline uint64_t checked_count(int64_t count) {
    if (count < 0)
        throw rankwise::BadArgument("count: " + std::to_string(count) +
                                    " given, expected a number of elements of at least 0");
    return uint64_t(count);
}

inline rankwise::DType checked_dtype(int dtype) {
    return rankwise::DType(rankwise::checked_number("dtype", dtype, rankwise::kDTypes, "a DType"));
}

inline rankwise::ReduceOp checked_op(int op) {
    return rankwise::ReduceOp(rankwise::checked_number("op", op, rankwise::kReduceOps, "a ReduceOp"));
}

inline constexpr long kTags = 1l << 31;
inline constexpr int kNotANumber = -2;

// A rank or a tag from Python: an int from `first` to end - 1, or kAny for ANY, whose type is a subclass of int;
// kNotANumber for anything else. first: 0, or kAny where MPI's ANY_SOURCE and ANY_TAG are accepted too.
inline int rank_or_tag(nb::handle value, long end, int first = 0) {
    if (!PyLong_Check(value.ptr())) return kNotANumber;
    int overflow = 0;
    const long number = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
    if (!PyLong_CheckExact(value.ptr())) return number == rankwise::kAny && !overflow ? rankwise::kAny : kNotANumber;
    return !overflow && number >= first && number < end ? int(number) : kNotANumber;
}

// The timeout of a Work's `wait`, which is not None.
inline double checked_timeout(nb::handle timeout) {
    return nb::cast<double>(nb::module_::import_("rankwise.contract.timeouts").attr("check_wait")(timeout));
}

inline void check_timeout(std::optional<double> timeout) {
    if (timeout) rankwise::checked_seconds(*timeout);
}
