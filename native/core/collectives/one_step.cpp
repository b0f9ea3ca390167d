// Which calls have a single step. It must agree with what each collective reserves.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

size_t bytes_of_only_step(const Transport& t, Op op, const Blocks& blocks) {
    if (t.n == 1) return kInHeader;
    const StepRing& s = t.steps;
    const auto fits = [&](size_t bytes) { return bytes <= s.slot_bytes() ? bytes : kSeveral; };
    if (op == Op::Scan || op == Op::Exscan) return blocks.largest() <= kInline ? kInHeader : fits(blocks.largest());
    const bool whole = op == Op::AllReduce || op == Op::Reduce || op == Op::Broadcast;
    const size_t largest = blocks.largest(), total = whole ? largest : blocks.total();
    if (!blocks.equal() || t.conditions().forced[size_t(op)] != Algorithm::None) return kSeveral;
    const Choice choice = tuning::choose(t.conditions(), op, {largest, total}, s.non_temporal(total * size_t(s.n)));
    switch (choice.first()) {
    case Algorithm::Inline: return kInHeader;
    case Algorithm::Flat: return fits(total);
    case Algorithm::Staged: break;
    default: return kSeveral;
    }
    switch (op) {
    case Op::Broadcast:
    case Op::AllGather:
    case Op::Gather: return fits(largest);
    case Op::Scatter:
    case Op::ReduceScatter:
    case Op::AllToAll: {
        const DividedSlot divided(s, largest);
        return divided.rounds == 1 ? divided.bytes : kSeveral;
    }
    default: return kSeveral;
    }
}

}  // namespace rankwise::collectives
