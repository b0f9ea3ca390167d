#include "failure/agreement.hpp"

#include <exception>
#include <optional>

#include "base/errors.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

namespace {

constexpr uint64_t pack(uint32_t number, uint32_t low) { return uint64_t(number) << 32 | low; }
constexpr uint32_t number_of(uint64_t word) { return uint32_t(word >> 32); }

}  // namespace

Agreement::Arrivals Agreement::arrivals(uint32_t number) const {
    Arrivals found;
    found.outcome.flags = -1;
    for (int r = 0; r < n_; ++r) {
        const int64_t process = process_of(r);
        const AgreementSlot& slot = shared_.slots[r];
        if (process >= 0 && slot.arrival.load() == pack(number, uint32_t(process))) {
            found.outcome.present.add(r);
            found.outcome.flags &= slot.flags.load();
            if (slot.op.load() != uint32_t(op_)) found.outcome.status = Outcome::Status::Mixed;
            found.before += r < rank_;
        } else if (!absent(r)) {
            found.awaited = true;
        }
    }
    return found;
}

void Agreement::create_group(Outcome& proposal, const std::vector<Member>& members) {
    try {
        proposal.group = create_group_segment(segment_, members);
    } catch (const Error& e) {
        proposal.status = Outcome::Status::NoMemory;
        trouble_ = e.what();
    }
}

Outcome Agreement::decide(int64_t flags, double timeout) {
    AgreementSlot& mine = shared_.slots[rank_];
    const uint32_t number = mine.taken.load() + 1;
    std::atomic<uint64_t>& decision = shared_.decisions[number % 2];
    mine.op.store(uint32_t(op_));
    mine.flags.store(flags);
    struct Presence {  // withdrawn if this rank stops waiting
        std::atomic<uint64_t>& word;
        const int errors = std::uncaught_exceptions();
        Presence(std::atomic<uint64_t>& word, uint64_t value) : word(word) { word.store(value); }
        ~Presence() {
            if (std::uncaught_exceptions() > errors && !fork.is_child()) word.store(0);
        }
        const ForkMark fork;
    } presence(mine.arrival, pack(number, process_));
    wake();
    const Waiter arrivals_end(timeout);
    Waiter waiter(timeout, program_);  // until there may be something to do
    std::optional<Clock::time_point> nobody_awaited_since;
    const auto ready = [&] {
        uint64_t before = decision.load();
        if (number_of(before) >= number) return true;
        const Arrivals found = arrivals(number);
        std::chrono::duration<double> left = arrivals_end.left();
        if (found.awaited && left.count() > 0 && !futile()) {
            nobody_awaited_since.reset();
        } else {
            const auto now = Clock::now();
            nobody_awaited_since = nobody_awaited_since.value_or(now);
            left = *nobody_awaited_since + found.before * kPatience - now;
        }
        waiter.expire_in(left);
        if (left.count() > 0) return false;
        Outcome proposal = found.outcome;
        if (proposal.status == Outcome::Status::Agreed) complete(proposal);
        mine.proposed[number % 2].store(number);
        std::atomic_thread_fence(std::memory_order_release);
        mine.proposals[number % 2].store(proposal);
        if (decision.compare_exchange_strong(before, pack(number, uint32_t(rank_)))) wake();
        else if (proposal.group) release_group_segment(segment_, proposal.group);
        return number_of(decision.load()) >= number;
    };
    const auto check = [&] {
        if (memory_ && memory_->closed()) throw Closed("this communicator was closed during " + std::string(name(op_)));
    };
    while (!waiter.sleep({notifications()}, ready, check)) {
    }
    mine.taken.store(number);
    const uint64_t decided = decision.load();
    if (number_of(decided) != number || uint32_t(decided) >= uint32_t(n_))
        return {};  // two agreements later, of which the others made at least one without this rank
    const AgreementSlot& slot = shared_.slots[uint32_t(decided)];
    const Outcome outcome = slot.proposals[number % 2].load();
    std::atomic_thread_fence(std::memory_order_acquire);
    return slot.proposed[number % 2].load() == number ? outcome : Outcome{};
}

}  // namespace rankwise
