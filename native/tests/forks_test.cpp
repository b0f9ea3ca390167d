// Tests that a child that a signal handler forks in the middle of a call harms nobody: it alone gets an error there,
// and what its way out of the call would undo in shared memory stays as its parent needs it.
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.hpp"

using namespace rankwise;

namespace {

// Forks in the next wait of one thread, and returns to the wait when the child has ended.
struct Forking : Embedding {
    std::thread::id where;
    std::atomic<bool> armed{false}, over{false};
    bool is_child = false;
    bool interrupted() override {
        if (!armed || std::this_thread::get_id() != where || !armed.exchange(false)) return false;
        if (const int child = fork()) {
            int status = 0;
            CHECK_EQ(waitpid(child, &status, 0), child);
            CHECK_EQ(status, 0);
            over = true;
        } else {
            is_child = true;
            alarm(30);
        }
        return false;
    }
};

// Rank 0 waits in the call and is forked there; rank 1 comes when the child has ended.
void forked_in(const char* what, const std::function<void(Comm&)>& call) {
    Forking program;
    Settings settings;
    settings.program = &program;
    ranks::run(
        2,
        [&](Comm& c) {
            const auto part = c.split(0, c.rank());
            if (c.rank() == 0) {
                program.where = std::this_thread::get_id();
                program.armed = true;
            } else {
                while (!program.over) std::this_thread::yield();
            }
            const std::string error = ranks::thrown([&] { call(*part); });
            if (program.is_child) _exit(error == "Closed" ? 0 : 1);
            CHECK(error.empty(), "rank " << c.rank() << ": " << error << " in " << what);
            CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "");
        },
        60, settings);
}

}  // namespace

int main() {
    std::vector<double> x(1 << 18);
    forked_in("barrier", [](Comm& c) { c.barrier(); });
    forked_in("gather", [&](Comm& c) {
        uint8_t blocks[2];
        c.gather_sized(&x, 1, {}, [&](const Counts&) { return std::vector<uint8_t*>{blocks, blocks + 1}; }, 0);
    });
    forked_in("agree", [](Comm& c) { CHECK_EQ(c.agree(c.rank() + 1), 0); });
    forked_in("shrink", [](Comm& c) { CHECK_EQ(c.shrink()->world_size(), 2); });
    forked_in("a large all_reduce", [](Comm& c) {
        std::vector<double> own(1 << 18, 1);
        c.all_reduce(own.data(), own.size(), DType::F64, ReduceOp::SUM);
        CHECK_EQ(own.back(), 2);
    });
    forked_in("recv", [&](Comm& c) {
        double got = 0;
        if (c.rank() == 0) c.messages().recv_now({&got, 1, DType::F64, 1, 0});
        else c.messages().send_now({x.data(), 1, DType::F64, 0, 0});
    });
    return check::result();
}
