#pragma once
#include <optional>

#include "bindings.hpp"

void bind_shortcuts(nb::class_<rankwise::Comm>& comm);
void bind_vector_arrays(nb::class_<rankwise::Comm>& comm);
void bind_rows(nb::class_<rankwise::Comm>& comm);
void bind_torch_calls(nb::module_& m, nb::class_<rankwise::Comm>& comm);

// The shortcuts as torch.distributed calls its operations: the ranks compare no shapes, and autograd is not notified.
struct TorchShortcuts {
    using Handle = nb::handle;
    bool (*all_reduce)(rankwise::Comm&, Handle x, Handle op, Handle given);
    bool (*broadcast)(rankwise::Comm&, Handle x, Handle src, Handle given);
    nb::object (*all_gather)(rankwise::Comm&, Handle x, Handle out);                 // x may be its part of `out`
    nb::object (*reduce_scatter)(rankwise::Comm&, Handle x, Handle op, Handle out);  // `out` may be its part of x
    nb::object (*all_to_all)(rankwise::Comm&, Handle x, Handle out);
    bool (*barrier)(rankwise::Comm&);
};
extern const TorchShortcuts torch_shortcuts;
// A reduction by its name, as a group's operations take it; none for any other.
std::optional<rankwise::ReduceOp> reduction_named(nb::handle op);
// Of rows; the splits are each rank's.
bool all_to_all_rows(rankwise::Comm& c, nb::handle x, nb::handle splits, nb::handle out, nb::handle out_splits);
