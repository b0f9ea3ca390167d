// The communicators of rankwise.h: how a program gets them and closes them.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "handles.hpp"
#include "job.hpp"

namespace rankwise::capi {

namespace {

constexpr double kExitTimeout = 0.7;  // seconds for closing everything when the program exits

// The program's communicators. Never destroyed: threads may still use it while the process ends.
struct Registry {
    std::mutex mutex;
    std::set<rankwise_comm> all;
};
Registry& registry() {
    static Registry* const all = new Registry;
    return *all;
}

void close_all() {
    const std::lock_guard lock(registry().mutex);
    for (rankwise_comm comm : registry().all) comm->comm->announce_end();
    for (rankwise_comm comm : registry().all)
        if (const auto trouble = comm->comm->close(kExitTimeout / double(registry().all.size())))
            std::fprintf(stderr, "rankwise: closing rank %d of %d at exit: %s\n", comm->comm->rank(),
                         comm->comm->world_size(), trouble->c_str());
}

}  // namespace

rankwise_comm opened(std::shared_ptr<Comm> comm) {
    [[maybe_unused]] static const int registered = std::atexit(close_all);
    const std::lock_guard lock(registry().mutex);
    return *registry().all.insert(new rankwise_comm_s{std::move(comm)}).first;
}

}  // namespace rankwise::capi

using namespace rankwise;
using namespace rankwise::capi;

int rankwise_init_version(int api_version, rankwise_comm* comm) {
    return guarded([&] {
        result(comm, "comm") = nullptr;
        if (api_version < 1 || api_version > RANKWISE_API_VERSION)
            throw Unsupported("init", "rankwise",
                              "this program was compiled with version " + std::to_string(api_version) +
                                  " of rankwise.h, and this library has version " +
                                  std::to_string(RANKWISE_API_VERSION) + "; install the rankwise of that header");
        *comm = opened(join_job());
    });
}

rankwise_comm rankwise_from_handle(uint64_t handle) { return reinterpret_cast<rankwise_comm>(handle); }

int rankwise_close(rankwise_comm* comm, double timeout) {
    return guarded([&] {
        if (!result(comm, "comm")) return;
        if ((*comm)->exposed) throw BadArgument("comm: it belongs to a Python group; close that");
        checked_seconds(timeout);
        const std::unique_ptr<rankwise_comm_s> owned(std::exchange(*comm, nullptr));
        {
            const std::lock_guard lock(registry().mutex);
            registry().all.erase(owned.get());
        }
        if (const auto trouble = owned->comm->close(timeout)) throw Error("close: " + *trouble);
    });
}

int rankwise_rank(rankwise_comm comm) { return comm ? comm->comm->rank() : -1; }

int rankwise_world_size(rankwise_comm comm) { return comm ? comm->comm->world_size() : -1; }

double rankwise_timeout(rankwise_comm comm) { return comm ? comm->comm->timeout() : -1; }

int rankwise_set_timeout(rankwise_comm comm, double seconds) {
    return on(comm, [&](Comm& c) { c.set_timeout(seconds); });
}

int rankwise_split(rankwise_comm comm, int64_t color, int64_t key, rankwise_comm* part) {
    return guarded([&] {
        result(part, "part") = nullptr;
        if (auto made = checked(comm).split(color, key)) *part = opened(std::move(made));
    });
}

int rankwise_abort(rankwise_comm comm, const char* why) {
    return on(comm, [&](Comm& c) { c.abort(std::string("aborted the group: ") + (why ? why : "")); });
}

int rankwise_shrink(rankwise_comm comm, rankwise_comm* survivors) {
    return guarded([&] {
        result(survivors, "survivors") = nullptr;
        *survivors = opened(checked(comm).shrink());
    });
}

int rankwise_agree(rankwise_comm comm, int64_t* flags) {
    return on(comm, [&](Comm& c) { *flags = c.agree(result(flags, "flags")); });
}
