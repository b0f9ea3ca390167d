// Every rank posts a step and awaits all others' steps. With a core for each rank that takes one cache-line transfer;
// on a shared core each rank runs once.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void barrier(StepRing& s) { s.await_all(s.post()); }

}  // namespace rankwise::collectives
