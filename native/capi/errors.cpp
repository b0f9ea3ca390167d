// Translates the core's exceptions to statuses.
#include <cstdio>
#include <cstdlib>
#include <new>

#include "handles.hpp"
#include "report.hpp"

namespace rankwise::capi {

namespace {

struct LatestError {
    int status = RANKWISE_OK;
    std::string text{}, site{};
    int rank = -1;
};
LatestError& latest() {
    thread_local LatestError error;
    return error;
}

int remember(int status, const std::string& text, int rank = -1) {
    latest() = {status, text, call_site(), rank};
    return status;
}

// Failures of a group are reported at once, because nobody knows whether the program will come to its end.
int remember_failure(int status, const Failure& failure) {
    if (failure.sequence > 0 || failure.to_blame >= 0) report_failure(failure);
    return remember(status, failure.message, failure.to_blame);
}

int first(const std::vector<int>& ranks) { return ranks.empty() ? -1 : ranks[0]; }

int status_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const PeerLost& e) {
        return remember_failure(RANKWISE_ERR_PEER_LOST, {"lost", e.what(), e.sequence, {}, e.rank});
    } catch (const Mismatch& e) {
        return remember_failure(RANKWISE_ERR_MISMATCH, {"mismatch", e.what(), e.sequence, e.calls, first(e.different)});
    } catch (const TimedOut& e) {
        return remember_failure(RANKWISE_ERR_TIMEOUT, {"timeout", e.what(), e.sequence, e.states, first(e.missing)});
    } catch (const BadArgument& e) {
        return remember(RANKWISE_ERR_ARGUMENT, e.what());
    } catch (const Unsupported& e) {
        return remember(RANKWISE_ERR_UNSUPPORTED, e.what());
    } catch (const Closed& e) {
        return remember(RANKWISE_ERR_CLOSED, e.what());
    } catch (const OutOfMemory& e) {
        return remember(RANKWISE_ERR_MEMORY, e.what());
    } catch (const std::bad_alloc&) {
        return remember(RANKWISE_ERR_MEMORY, "out of memory");
    } catch (const Interrupted& e) {
        return remember(RANKWISE_ERR_INTERRUPTED, e.what());
    } catch (const std::exception& e) {
        return remember(RANKWISE_ERR_OTHER, e.what());
    }
}

}  // namespace

int status_of_error() noexcept {
    try {
        return status_of(std::current_exception());
    } catch (...) {  // no memory for the text
        return RANKWISE_ERR_MEMORY;
    }
}

}  // namespace rankwise::capi

using namespace rankwise::capi;

const char* rankwise_error_message(void) { return latest().text.c_str(); }

int rankwise_error_rank(void) { return latest().rank; }

void rankwise_check(int status) {
    if (status == RANKWISE_OK) return;
    const LatestError& error = latest();
    const char* const between = error.site.empty() ? "" : ": ";
    std::fprintf(stderr, "%s%s%s\n", error.site.c_str(), between, error.text.c_str());
    if (error.status < RANKWISE_ERR_PEER_LOST || error.status > RANKWISE_ERR_TIMEOUT)
        report_end({"error", error.text + (error.site.empty() ? "" : " at " + error.site)});
    std::exit(1);
}
