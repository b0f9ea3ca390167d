// Every rank announces itself to all and waits for all: one step, which a full set of cores does in
// one cache-line transfer, and ranks that share a core in one turn each.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void barrier(SlotProtocol& s) { s.await_all(s.post()); }

}  // namespace rankwise::collectives
