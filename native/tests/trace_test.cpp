// Tests what other processes read about a rank's operations, while it runs and afterwards.
#include "trace/trace.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "ranks.hpp"

using namespace rankwise;

namespace {

void sum(Comm& c, uint64_t count) {
    std::vector<float> x(count, 1);
    c.all_reduce(x.data(), count, DType::F32, ReduceOp::SUM);
}

constexpr int64_t kSecond = 1'000'000'000;  // by far more than the clocks, read by an interrupted thread, may differ

const Operation& last(const std::vector<Operation>& all) { return all.back(); }

void every_operation_has_an_entry() {
    auto segment = ranks::run(2, [](Comm& c) {
        sum(c, 2);
        float x[3] = {};
        c.broadcast(x, 3, DType::F32, 1);
        auto g = c.split(0, 0);
        g->name_group("halves");
        sum(*g, 100'000);
        if (c.rank() == 0) c.messages().send_now({x, 3, DType::F32, 1, 7});
        else c.messages().recv({x, 3, DType::F32, kAny, kAny})->wait({});
        g->close(1);
    });
    const SegmentView view(segment->fd());
    for (int rank = 0; rank < 2; ++rank) {
        const auto all = operations(view, rank);
        std::string names;
        for (const Operation& o : all) names += to_string(o, 0) + ";";
        const std::string message = rank == 0 ? "send to rank 1, tag 7;" : "recv from rank 0, tag 7;";
        CHECK_EQ(names, "init;init #1;all_reduce #1;broadcast #2;split #3;all_reduce #1 of group 'halves';" + message);
        if (all.size() != 7) continue;
        CHECK_EQ(all[2].bytes, 8u);
        CHECK(all[2].dtype == DType::F32 && all[2].op == ReduceOp::SUM && !all[2].root && !all[2].peer);
        CHECK(all[3].root == 1 && !all[3].op);
        CHECK(!all[4].dtype);
        CHECK_EQ(all[5].bytes, 400'000u);
        CHECK(*all[5].end > all[5].begin);
        CHECK(all[6].peer == 1 - rank && all[6].tag == 7 && all[6].sequence == 0);
        const int64_t now = clock_ns(CLOCK_REALTIME), start = view.header().started.realtime;
        for (const Operation& o : all) {
            CHECK(o.end && !o.failed, to_string(o, 0));
            CHECK(o.begin >= start - kSecond && o.end >= o.begin && *o.end <= now + kSecond, to_string(o, 0));
        }
        const RankRecord& record = segment->record(rank);
        CHECK_EQ(record.operations.load(), 7u);
        CHECK(record.bytes.load() >= 400'000 + 12);
        const Whereabouts where = whereabouts(view, rank);
        CHECK(!where.inside && where.begun() && where.since >= 0);
    }
}

void failures_are_marked() {
    auto segment = ranks::run(2, [](Comm& c) {
        auto g = c.split(0, 0);
        CHECK_EQ(ranks::thrown([&] { sum(*g, c.rank() ? 10 : 9); }), "Mismatch");
    });
    for (int rank = 0; rank < 2; ++rank) CHECK(last(operations(*segment, rank)).failed);
}

void the_last_thousand_are_kept() {
    auto segment = ranks::run(2, [](Comm& c) {
        for (int i = 0; i < 3000; ++i) sum(c, 1);
    });
    const auto all = operations(*segment, 1);
    CHECK_EQ(all.size(), size_t(kTraced));
    CHECK_EQ(last(all).sequence, 3000u);
    for (size_t i = 1; i < all.size(); ++i) CHECK_EQ(all[i].sequence, all[i - 1].sequence + 1);
}

void waiting_is_visible(Comm& c, Segment& segment) {
    auto until = [](auto&& condition) {
        for (int i = 0; i < 10'000 && !condition(); ++i) usleep(1000);
        return condition();
    };
    if (c.rank() == 1) {
        Whereabouts where;
        const auto is_in = [&](Op op) {
            where = whereabouts(segment, 0);
            return where.inside && where.operation->kind == op;
        };
        CHECK(until([&] { return is_in(Op::Barrier); }), to_string(where, 0));
        CHECK(!where.operation->end);
        const uint64_t before =
            segment.record(0).waited.load();  // rank 0's init, which may end late, has added its wait
        CHECK(until([&] { return segment.record(0).waited.load() > before; }));
        CHECK(to_string(where, 0).find("in barrier #") == 0);
        CHECK(to_string(where, 7).find(" of all ranks for ") != std::string::npos, to_string(where, 7));
        c.barrier();
        CHECK(until([&] { return is_in(Op::Recv); }), to_string(where, 0));
        CHECK(to_string(where, 0).find("in recv from any rank, tag 3 for ") == 0, to_string(where, 0));
        int x = 5;
        c.messages().send_now({&x, 1, DType::I32, 0, 3});
    } else {
        c.barrier();
        int x = 0, y = 0;
        auto request =
            c.messages().recv({&y, 1, DType::I32, 1, 4});  // the program does not wait for it, so the rank is not in it
        CHECK(!whereabouts(segment, 0).inside);
        auto other = c.messages().recv({&x, 1, DType::I32, kAny, 3});
        other->wait({});
        CHECK_EQ(x, 5);
    }
}

// After a wait that failed, the rank is elsewhere.
void a_message_is_not_waited_for_any_more(Comm& c) {
    const auto g = c.split(0, 0);
    int x = 0;
    const auto elsewhere = [&] { return !whereabouts(*c.segment(), c.rank()).inside; };
    const auto late = g->messages().recv({&x, 1, DType::I32, g->rank(), 1});
    CHECK_EQ(ranks::thrown([&] { late->wait(0.02); }), "TimedOut");
    CHECK(elsewhere());
    late->cancel();
    if (c.rank() == 1) {
        g->close(1);
    } else {
        const auto lost = g->messages().recv({&x, 1, DType::I32, 1, 1});
        CHECK_EQ(ranks::thrown([&] { lost->wait({}); }), "PeerLost");
        CHECK(elsewhere());
    }
    c.barrier();
}

// An entry stays while its operation is in progress, even if other threads of the rank write many others.
void threads_and_a_reader() {
    std::atomic<bool> over{false};
    auto segment = Segment::create(2);
    const SegmentView view(segment->fd());
    std::thread reader([&] {
        while (!over)
            for (int rank = 0; rank < 2; ++rank)
                for (const Operation& o : operations(view, rank)) {
                    if (o.kind != Op::AllReduce) continue;
                    CHECK_EQ(o.bytes, 8u * o.group);
                    CHECK(!o.end || *o.end >= o.begin);
                }
    });
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
            auto world = Comm::join(segment, rank, 60, Comm::RunsAs::Thread);
            std::vector<std::shared_ptr<Comm>> groups;
            for (int i = 0; i < 3; ++i) groups.push_back(world->split(0, 0));
            int x = 0;
            auto pending = rank == 0 ? world->messages().recv({&x, 1, DType::I32, 1, 0}) : nullptr;
            std::vector<std::thread> users;
            for (int i = 0; i < 3; ++i)
                users.emplace_back([&, i] {
                    for (int k = 0; k < 1500; ++k) sum(*groups[size_t(i)], 2 * uint64_t(i + 1));
                });
            for (auto& t : users) t.join();
            if (rank == 0) {
                bool found = false;
                for (const Operation& o : operations(view, 0)) found |= o.kind == Op::Recv && !o.end && o.background;
                CHECK(found, "an operation in progress lost its entry");
            }
            world->barrier();
            if (rank == 1) world->messages().send_now({&x, 1, DType::I32, 0, 0});
            else pending->wait({});
            for (auto& g : groups) g->close(5);
            world->close(5);
        });
    for (auto& t : threads) t.join();
    over = true;
    reader.join();
}

std::atomic<uint64_t> others{0};  // operations of the thread that is not interrupted
std::atomic<bool> written{false};

// An interrupted thread goes on only after others have used the whole ring, so that they reach the entry it writes.
void let_others_pass(int) {
    for (const uint64_t until = others + 2 * kTraced; others < until && !written;) usleep(0);
}

void an_interrupted_writer_keeps_its_entry() {
    auto segment = Segment::create(1);
    Tracer tracer(*segment, 0);
    const auto write = [&](uint32_t group, std::atomic<uint64_t>& count) {
        while (!written) {
            const uint64_t at = ticks();
            tracer.end(tracer.begin(uint64_t(Op::Barrier), group, 0, group, group, at), at, 0);
            ++count;
        }
    };
    std::signal(SIGUSR1, let_others_pass);
    std::atomic<uint64_t> own{0};
    std::thread interrupted(write, 1, std::ref(own)), other(write, 2, std::ref(others));
    for (int i = 0; i < 300; ++i) {
        for (const uint64_t before = own; own == before;) usleep(0);
        pthread_kill(interrupted.native_handle(), SIGUSR1);
        for (const Operation& o : operations(*segment, 0)) {
            CHECK(!o.end || *o.end >= o.begin);
            CHECK(o.sequence == o.group && o.bytes == o.group);
        }
    }
    written = true;
    interrupted.join();
    other.join();
    std::signal(SIGUSR1, SIG_DFL);
    for (const Operation& o : operations(*segment, 0)) CHECK(o.end, "an ended operation is shown as in progress");
}

void views_of_other_files() {
    CHECK_EQ(ranks::thrown([] { SegmentView view(-1); }), "BadArgument");
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(ranks::thrown([&] { SegmentView view(ends[0]); }), "BadArgument");
    close(ends[0]);
    close(ends[1]);

    const auto segment = Segment::create(1);  // a copy whose owner may cut it off while it is read
    const Descriptor copy(memfd_create("rankwise", MFD_ALLOW_SEALING));
    CHECK_EQ(ftruncate(copy.get(), 1 << 20), 0);
    CHECK_EQ(pwrite(copy.get(), &segment->header(), 1 << 20, 0), 1 << 20);
    CHECK_EQ(ranks::thrown([&] { SegmentView view(copy.get()); }), "BadArgument");
    CHECK_EQ(fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    const SegmentView view(copy.get());
    SegmentHeader* const header = static_cast<SegmentHeader*>(
        mmap(nullptr, sizeof(SegmentHeader), PROT_READ | PROT_WRITE, MAP_SHARED, copy.get(), 0));
    header->world_size = kMaxRanks;  // after it was checked
    CHECK(operations(view, 0).empty());
    CHECK_EQ(view.world_size(), 1);
    CHECK_EQ(ranks::thrown([&] { SegmentView again(copy.get()); }), "BadArgument");  // it is too short for so many
    munmap(header, sizeof(SegmentHeader));

    const Descriptor huge(memfd_create("rankwise", MFD_ALLOW_SEALING | MFD_HUGETLB));  // its pages may be lacking
    if (!huge || ftruncate(huge.get(), 1 << 30) != 0 ||
        fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        std::cerr << "not tested: a segment of huge pages; this system has none\n";
        return;
    }
    CHECK_EQ(ranks::thrown([&] { SegmentView view(huge.get()); }), "BadArgument");
    CHECK_EQ(ranks::thrown([&] { Segment::attach(huge.get()); }), "BadArgument");
}

// Whatever is in an entry, reading it harms nobody.
void overwritten_entries() {
    const auto segment = Segment::create(1);
    Tracer tracer(*segment, 0);
    for (uint64_t byte = 0; byte < 256; ++byte) {
        for (const uint64_t what : {uint64_t(Op::AllReduce) | byte << 8, byte, byte << 16 | uint64_t(Op::Reduce)}) {
            tracer.end(tracer.begin(what, 0, 0, 1, 8, ticks()), ticks(), 0);
            const Operation operation = operations(*segment, 0).back();
            CHECK(!operation.dtype || int(*operation.dtype) < kDTypes);
            CHECK(!operation.op || int(*operation.op) < kReduceOps);
            CHECK(!to_string(operation, 0).empty());
        }
    }
    segment->name_group(3, "x");
    char* const text = reinterpret_cast<char*>(segment->header().group_names[3].words);
    std::memcpy(text, "a\x1b[2J\n\xff", 7);
    CHECK_EQ(name_of_group(segment->header(), 3), "'a?[2J??'");
}

}  // namespace

int main() {
    every_operation_has_an_entry();
    failures_are_marked();
    ranks::run(2, a_message_is_not_waited_for_any_more);
    the_last_thousand_are_kept();
    auto segment = Segment::create(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
            auto comm = Comm::join(segment, rank, 60, Comm::RunsAs::Thread);
            waiting_is_visible(*comm, *segment);
            comm->close(1);
        });
    for (auto& t : threads) t.join();
    threads_and_a_reader();
    an_interrupted_writer_keeps_its_entry();
    views_of_other_files();
    overwritten_entries();
    return check::result();
}
