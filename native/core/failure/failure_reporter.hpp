// Why a group failed, and the error that says so: which ranks caused the failure, how, and in which operation.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "failure/timeout_report.hpp"
#include "transport/transport.hpp"

namespace rankwise {

// One rank's view of its group's failure record.
class FailureReporter final : public ErrorSource {
public:
    // transport may be constructed after this.
    explicit FailureReporter(Transport& transport) : t_(transport) {}

    // In the current collective.
    [[noreturn]] void throw_failure() override;
    [[noreturn]] void throw_lost(int peer) override;
    [[noreturn]] void throw_mismatch() override;
    [[noreturn]] void throw_timed_out(uint64_t steps) override;
    [[noreturn]] void throw_overwritten(const char* what, int peer) override;
    // In any operation. sequence: its number, or -1.
    [[noreturn]] void throw_failure(const std::string& operation, int64_t sequence = -1,
                                    const CallOptions& options = {});
    [[noreturn]] void throw_lost(int peer, const std::string& operation, int64_t sequence = -1);
    // Fail the group because `what` of the shared memory holds something that no rank writes there, and throw. It must
    // not be used as an address, an index or a length.
    [[noreturn]] void throw_overwritten(const std::string& what, const std::string& operation, int64_t sequence = -1);
    // The group has failed, so this rank does not begin the call; other ranks see where it made it.
    [[noreturn]] void refuse(const Call& call, const CallOptions& options);
    // This rank makes no more calls: throw if the ranks' calls differed and no call of this rank has reported it.
    void compare_last();

    RankTexts states() const;                                       // what each rank is doing
    RankTexts request_stacks(const std::vector<int>& peers) const;  // of these peers' programs (failure/stacks.hpp)
    // Continues a report's headline by who waits for whom (failure/deadlock.hpp). Returns "" if no deadlock can be
    // seen, or if this rank waits only `limit` seconds, less than its timeout.
    std::string deadlock(double limit) const;
    std::string certain_deadlock() const;  // the same before any timeout, if it can be proved

private:
    // while_in: which call this rank was in, as ", while rank 1 was in all_reduce #3". writers_warning: that peers may
    // still write into this rank's array, or "".
    [[noreturn]] void report_lost(const Failure& f, const std::string& while_in, const std::string& writers_warning,
                                  const std::string& operation, int64_t sequence);
    [[noreturn]] void report_timed_out(const Failure& f, const std::string& while_in,
                                       const std::string& writers_warning, const std::string& operation,
                                       int64_t sequence);
    [[noreturn]] void report_mismatch(const std::string& writers_warning);
    TimeoutReport timeout_report(const Failure& f) const;
    std::string await_no_writers(const Failure& f);
    std::string of_group() const;  // " of group 'world.tp'", or "" for the group of all ranks
    std::string awaited_message() const;
    void publish_call_site();
    void await_call_sites() const;

    Transport& t_;
    Call refused_{};
    bool makes_calls_ = true;                   // false once the group is being closed
    std::atomic<bool> mismatch_thrown_{false};  // a call of this rank has reported that the calls differed
};

}  // namespace rankwise
