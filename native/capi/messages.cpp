// The messages of rankwise.h.
#include "handles.hpp"

using namespace rankwise;
using namespace rankwise::capi;

namespace {

int checked_tag(int tag, int least = 0) {
    if (tag < least) throw BadArgument("tag: " + std::to_string(tag) + " given, expected a number of at least 0");
    return tag;
}
int checked_source(int src) {
    if (src < kAny) throw BadArgument("src: rank " + std::to_string(src) + " given, expected a rank or RANKWISE_ANY");
    return src;
}

void describe(rankwise_message* where, const Arrival& a) {
    if (where) *where = {a.source, a.tag, a.count, rankwise_dtype(a.dtype)};
}

// Forgets the request, which is complete, or has failed.
void drop(rankwise_request& request) {
    delete request;
    request = nullptr;
}

// Waits for a request of the caller, and drops it unless it is still in progress.
void finish(rankwise_request& request, std::optional<double> timeout, rankwise_message* message) {
    Request& r = *request->request;
    try {
        r.wait(timeout);
        describe(message, r.arrival());
    } catch (const TimedOut&) {
        if (r.has_result()) drop(request);
        throw;
    } catch (const Interrupted&) {
        throw;
    } catch (...) {
        drop(request);
        throw;
    }
    drop(request);
}

}  // namespace

int rankwise_send(rankwise_comm comm, const void* data, uint64_t count, rankwise_dtype dtype, int dest, int tag) {
    return guarded([&] {
        checked(comm).messages().send_now({memory(data, count, "data"), count, checked(dtype), dest, checked_tag(tag)});
    });
}

int rankwise_recv(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int src, int tag,
                  rankwise_message* message) {
    return guarded([&] {
        describe(message, checked(comm).messages().recv_now({memory(data, count, "data"), count, checked(dtype),
                                                             checked_source(src), checked_tag(tag, kAny)}));
    });
}

int rankwise_recv_up_to(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int src, int tag,
                        rankwise_message* message) {
    return guarded([&] {
        describe(message,
                 checked(comm).messages().recv_now({memory(data, count, "data"), count, checked(dtype),
                                                    checked_source(src), checked_tag(tag, kAny), Wanted::UpTo}));
    });
}

int rankwise_isend(rankwise_comm comm, const void* data, uint64_t count, rankwise_dtype dtype, int dest, int tag,
                   rankwise_request* request) {
    return guarded([&] {
        result(request, "request") = nullptr;
        Comm& c = checked(comm);
        const Send message{memory(data, count, "data"), count, checked(dtype), dest, checked_tag(tag)};
        if (!c.messages().send_at_once(message)) *request = new rankwise_request_s{c.messages().send(message)};
    });
}

int rankwise_irecv(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int src, int tag,
                   rankwise_request* request) {
    return guarded([&] {
        result(request, "request") = nullptr;
        *request = new rankwise_request_s{checked(comm).messages().recv(
            {memory(data, count, "data"), count, checked(dtype), checked_source(src), checked_tag(tag, kAny)})};
    });
}

int rankwise_wait(rankwise_request* request, double timeout, rankwise_message* message) {
    return guarded([&] {
        const auto limit = timeout < 0 ? std::nullopt : std::optional(checked_seconds(timeout));
        if (result(request, "request")) finish(*request, limit, message);
    });
}

int rankwise_test(rankwise_request* request, int* done, rankwise_message* message) {
    return guarded([&] {
        result(done, "done") = 1;
        if (!result(request, "request")) return;
        if ((*request)->request->done()) finish(*request, std::nullopt, message);
        else *done = 0;
    });
}

int rankwise_cancel(rankwise_request* request) {
    return guarded([&] {
        if (!result(request, "request")) return;
        const std::unique_ptr<rankwise_request_s> owned(std::exchange(*request, nullptr));
        owned->request->cancel();
    });
}

int rankwise_probe(rankwise_comm comm, int src, int tag, int* found, rankwise_message* message) {
    return guarded([&] {
        const auto arrived = checked(comm).messages().probe(checked_source(src), checked_tag(tag, kAny));
        result(found, "found") = arrived.has_value();
        if (arrived) describe(message, *arrived);
    });
}

int rankwise_sync(rankwise_comm comm) {
    return on(comm, [&](Comm& c) { c.sync(); });
}
