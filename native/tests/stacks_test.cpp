// Ranks that tell each other their stacks: here any text.
#include "failure/stacks.hpp"

#include "ranks.hpp"

using namespace rankwise;

namespace {

struct Teller {
    Segment& segment;
    int rank;
    std::thread thread;
    Teller(Segment& segment, int rank, const std::string& text) : segment(segment), rank(rank) {
        offer_stacks(segment, rank);
        thread = std::thread([this, text] {
            while (await_question(this->segment, this->rank)) tell_stacks(this->segment, this->rank, text);
        });
    }
    ~Teller() {
        stop_stacks(segment, rank);
        thread.join();
    }
};

}  // namespace

int main() {
    auto segment = Segment::create(4);
    const std::string line(1000, 'x');
    std::string text = "first line\n";
    while (text.size() < 100'000) text += line + "\n";
    {
        Teller one(*segment, 0, "one"), two(*segment, 1, text);
        offer_stacks(*segment, 2);  // and never answers
        ask_for_stacks(*segment, {0, 1, 2, 3});
        CHECK_EQ(stacks_told(*segment, 0).value_or(""), "one");
        const std::string told = stacks_told(*segment, 1).value_or("");
        CHECK(told.size() > 30'000 && told.rfind("...\n" + line + "\n", 0) == 0 && told.substr(told.size() - 1001) == line + "\n", told.size());
        CHECK(stacks_told(*segment, 2).value_or("").find("no answer") == 0);
        CHECK(!stacks_told(*segment, 3));
        stop_stacks(*segment, 2);
    }
    CHECK(!stacks_told(*segment, 0));
    CHECK_EQ(segment->allocated_blocks(), size_t(1));  // the group of all ranks

    // In a timeout: of the ranks of the group.
    const auto run = ranks::run(2, [&](Comm& c) {
        auto g = c.split(0, 0);
        g->set_timeout(0.2);
        if (c.rank() == 1) {
            c.barrier();
            return;
        }
        try {
            g->barrier();
            CHECK(false, "no timeout");
        } catch (const TimedOut& e) {
            CHECK(e.stacks.empty());
            CHECK_EQ(e.missing.size(), size_t(1));
            CHECK(std::string(e.what()).find("rank 1: in barrier #2 of all ranks for ") != std::string::npos, e.what());
        }
        c.barrier();
    });
    return check::result();
}
