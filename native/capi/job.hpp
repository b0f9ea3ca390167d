// How a program joins the job of its launcher.
#pragma once
#include <memory>

#include "comm.hpp"

namespace rankwise::capi {

// This process's communicator of all ranks of the job that the environment describes, or of itself alone without a
// launcher. Throws BadArgument, Unsupported, and what Comm::join throws.
std::shared_ptr<Comm> join_job();

}  // namespace rankwise::capi
