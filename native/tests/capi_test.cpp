// Tests the C API from C, with ranks that are threads: results, messages, refusals, and failures on every rank.
#include "capi/handles.hpp"
#include "capi_calls.h"
#include "ranks.hpp"

using rankwise::Comm;

namespace {

using Body = std::function<void(rankwise_comm)>;

void run(int n, const Body& body, const rankwise::Settings& settings = {}) {
    ranks::run(
        n,
        [&](Comm& c) {
            // As a Python rank lends its communicator; this one outlives the handle.
            rankwise_comm_s handle = rankwise::capi::exposed(std::shared_ptr<Comm>(std::shared_ptr<Comm>(), &c));
            body(&handle);
        },
        60, settings);
}

void check_calls(int (*calls)(rankwise_comm), int n) {
    run(n, [=](rankwise_comm comm) {
        const int line = calls(comm);
        CHECK(line == 0, "capi_calls.c:" << line << " on " << n << " ranks: " << rankwise_error_message());
    });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Like a program's embedding, it says where C makes its calls.
struct Program final : rankwise::Embedding {
    std::string call_site() override { return rankwise::capi::call_site(); }
};

void a_mismatch_shows_the_lines() {
    Program program;
    rankwise::Settings settings;
    settings.program = &program;
    run(
        3,
        [](rankwise_comm comm) {
            const int me = rankwise_rank(comm);
            CHECK_EQ(capi_reduce(comm, me == 1 ? 3 : 2), RANKWISE_ERR_MISMATCH);
            CHECK_EQ(rankwise_error_rank(), 1);
            const std::string text = rankwise_error_message();
            CHECK(contains(text, "capi_calls.c:") && contains(text, "(capi_reduce)   <-- other count"), text);
            CHECK_EQ(capi_reduce(comm, 2), RANKWISE_ERR_MISMATCH);  // the group stays failed
            rankwise_comm survivors = nullptr;
            CHECK_EQ(rankwise_shrink(comm, &survivors), RANKWISE_OK);
            CHECK_EQ(capi_reduce(survivors, 2), RANKWISE_OK);
            CHECK_EQ(rankwise_close(&survivors, 5), RANKWISE_OK);
        },
        settings);
}

void an_abort_reaches_every_rank() {
    run(2, [](rankwise_comm comm) {
        if (rankwise_rank(comm) == 0) CHECK_EQ(rankwise_abort(comm, "no data"), RANKWISE_OK);
        CHECK_EQ(rankwise_barrier(comm), RANKWISE_ERR_PEER_LOST);
        CHECK(contains(rankwise_error_message(), "aborted the group: no data"), rankwise_error_message());
        CHECK_EQ(rankwise_error_rank(), 0);
    });
}

void a_lent_communicator_is_not_closed() {
    run(1, [](rankwise_comm comm) {
        CHECK_EQ(rankwise_close(&comm, 1), RANKWISE_ERR_ARGUMENT);
        CHECK_EQ(rankwise_barrier(comm), RANKWISE_OK);
        CHECK_EQ(rankwise_from_handle(reinterpret_cast<uint64_t>(comm)), comm);
    });
}

}  // namespace

int main() {
    for (const int n : ranks::worlds({1, 2, 3, 5})) {
        check_calls(capi_collectives, n);
        check_calls(capi_messages, n);
        check_calls(capi_refusals, n);
    }
    a_mismatch_shows_the_lines();
    an_abort_reaches_every_rank();
    a_lent_communicator_is_not_closed();
    return check::result();
}
