// Every rank posts a step and awaits all others' steps. With a core for each rank that takes one cache-line transfer;
// on a shared core each rank runs once.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void barrier(Transport& t) {
    StepRing& s = t.steps;
    const uint64_t step = s.post();
    t.complete_at(step, Started::kAll, [&s, step] { s.await_all(step); });
}

}  // namespace rankwise::collectives
