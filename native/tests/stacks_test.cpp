// Tests that ranks request each other's stacks (here any text), and that all ranks report a timeout alike.
#include "failure/stacks.hpp"

#include <poll.h>
#include <unistd.h>

#include "failure/timeout_report.hpp"
#include "ranks.hpp"

using namespace rankwise;

namespace {

struct Program : Embedding {
    std::string text;
    std::string stacks() override { return text; }
};

// This process is the first of the rank.
void join(Segment& segment, int rank) {
    segment.record(rank).pid = QualifiedPid::own();
    segment.record(rank).joined = 1;
}

// Answers a rank's doorbell as its watcher thread does.
struct Watcher {
    const int doorbell;
    const std::shared_ptr<std::atomic<bool>> answering = std::make_shared<std::atomic<bool>>(false);
    std::atomic<bool> over{false};
    std::thread thread;
    Watcher(const std::shared_ptr<Segment>& segment, int rank, Program& program)
        : doorbell(open_doorbell(*segment, rank).release()) {
        join(*segment, rank);
        thread = std::thread([this, segment, rank, &program] {
            while (!over) {
                pollfd notifications{doorbell, POLLIN, 0};
                if (poll(&notifications, 1, 10) == 1) answer_doorbell(segment, rank, doorbell, program, answering);
            }
        });
    }
    ~Watcher() {
        over = true;
        thread.join();
        close(doorbell);
    }
};

std::string answer_of(const RankTexts& answers, int rank) {
    for (const auto& [r, text] : answers)
        if (r == rank) return text;
    return "";
}

void stacks() {
    auto segment = Segment::create(4);
    const std::string line(1000, 'x');
    std::string text = "first line\n";
    while (text.size() < 100'000) text += line + "\n";
    static Program program, other;  // two in one process
    const int unwatched = open_doorbell(*segment, 2).release();
    join(*segment, 2);
    {
        Watcher one(segment, 0, program), two(segment, 1, other);
        program.text = "one", other.text = "two";
        CHECK_EQ(answer_of(request_stacks(*segment, {0}), 0), "one");
        CHECK_EQ(answer_of(request_stacks(*segment, {1}), 1), "two");
        program.text = text;
        const RankTexts answers = request_stacks(*segment, {0, 2, 3});
        const std::string kept = answer_of(answers, 0);
        CHECK(kept.size() > 30'000 && kept.rfind("...\n" + line + "\n", 0) == 0 &&
                  kept.substr(kept.size() - 1001) == line + "\n",
              kept.size());
        CHECK(answer_of(answers, 2).find("no answer") == 0, answer_of(answers, 2));
        CHECK_EQ(answers.size(), size_t(2));  // rank 3 has no doorbell
        if (geteuid() == 0) {  // who may give the segment to another user: then the processes are not that user's
            CHECK_EQ(fchown(segment->fd(), 12345, 12345), 0);
            CHECK(answer_of(request_stacks(*segment, {0}), 0).find("no answer") == 0);
            CHECK_EQ(fchown(segment->fd(), geteuid(), getegid()), 0);
            CHECK_EQ(answer_of(request_stacks(*segment, {0}), 0).rfind("...\n", 0), size_t(0));
        } else {
            std::cerr << "not tested: the stacks of processes of another user; only root can request them\n";
        }
    }
    close(unwatched);  // the descriptor may now belong to another file, to which nothing may be written
    CHECK(answer_of(request_stacks(*segment, {2}), 2).find("no answer") == 0);
}

void reports() {
    auto segment = Segment::create(1);
    const TimeoutReport written{
        "rank 1 did not come", {1}, {{0, "in barrier #2 for 3.0 s"}, {1, ""}}, {{1, "line\nline"}}};
    const uint64_t offset = write_report(*segment, written);
    const TimeoutReport read = read_report(*segment, offset);
    CHECK(read.headline == written.headline && read.missing == written.missing && read.states == written.states &&
          read.stacks == written.stacks);
    segment->heap().release(offset);

    CHECK_EQ(list_ranks({3}), "rank 3");
    CHECK_EQ(list_ranks({0, 1, 3, 4, 5, 9}), "ranks 0, 1, 3-5, 9");
    CHECK_EQ(list_states({{0, "in barrier #2 for 2.9 s"},
                          {1, "outside any collective for 3.0 s, last was split #1"},
                          {2, "in barrier #2 for 10.0 s"},
                          {3, "has not joined"},
                          {4, "in barrier #2 for 3.0 s"}}),
             "\n  ranks 0, 2, 4: in barrier #2 for 2.9 to 10.0 s"
             "\n  rank 1: outside any collective for 3.0 s, last was split #1"
             "\n  rank 3: has not joined");
}

}  // namespace

int main() {
    stacks();
    reports();
    // All ranks of the group report the same; the ranks that have not begun the operation are missing.
    std::string texts[3];
    const auto run = ranks::run(4, [&](Comm& c) {
        auto g = c.split(0, 0);
        g->set_timeout(c.rank() == 0 ? 0.2 : 60);
        if (c.rank() == 3) {
            c.barrier();
            g->close(1);
            return;
        }
        try {
            g->barrier();
            CHECK(false, "no timeout");
        } catch (const TimedOut& e) {
            texts[c.rank()] = e.what();
            CHECK(e.stacks.empty());  // ranks that are threads have no doorbell
            CHECK(e.missing == std::vector<int>{3});
        }
        try {
            g->barrier();
            CHECK(false, "the failed group works");
        } catch (const TimedOut& e) {
            CHECK(std::string(e.what()).find(texts[c.rank()].substr(0, texts[c.rank()].find('\n')) + ", while rank ") ==
                      0,
                  e.what());
        }
        c.barrier();
        g->close(1);
    });
    CHECK(texts[0].find("rank 3 of group 1 did not reach barrier #1 within the timeout of 0.2 s\n") == 0, texts[0]);
    CHECK(texts[0].find("rank 3: in barrier #2 of all ranks for ") != std::string::npos, texts[0]);
    CHECK_EQ(texts[1], texts[0]);
    CHECK_EQ(texts[2], texts[0]);
    CHECK_EQ(run->heap().allocated_blocks(),
             size_t(1));  // the group of all ranks: the failed group's report has been released
    return check::result();
}
