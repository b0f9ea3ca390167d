// Tests that the calls that ranks record are compared, and which differences are found.
#include "ranks.hpp"
#include "watch/call_comparer.hpp"
#include "watch/roll_call.hpp"

using namespace rankwise;

namespace {

enum : uint16_t { kBcast, kAllreduce, kRecv };

CallNames names() {
    return {{{"Bcast", Op::Broadcast, false, true}, {"Allreduce", Op::AllReduce}, {"Recv", Op::Recv, true}},
            {"SUM", "PROD", "MIN", "MAX"}};
}

struct Ranks {
    std::shared_ptr<Segment> segment = Segment::create(3);
    CallWriter first{segment, 0, 4, names()}, second{segment, 1, 5, names()}, third{segment, 2, 6, names()};
};

void call(CallWriter& writer, uint32_t comm, uint16_t operation, int root = 0, uint64_t amount = kUnknownAmount) {
    const CallKind kind{operation, kNone, operation == kAllreduce ? uint8_t(0) : kNone, root};
    writer.end(writer.begin(comm, kind, amount, 0, 0), false);
}

void matching() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment, 0);
    const uint32_t a = ranks.first.add_comm(7, "world"), b = ranks.second.add_comm(7, "world");
    for (int i = 0; i < 1000; ++i) call(ranks.first, a, kBcast), call(ranks.second, b, kBcast);
    CHECK(!comparer.look());
    call(ranks.first, a, kAllreduce, 0, 3);  // the other rank has not come yet
    CHECK(!comparer.look());
    call(ranks.second, b, kAllreduce, 0, kUnknownAmount);
    CHECK(!comparer.look());
    call(ranks.first, 0, kRecv, 1);  // a message
    CHECK(!comparer.look());
}

void differing() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment, 0), last(*ranks.segment, 1), at_end(*ranks.segment, 1, true);
    const uint32_t a = ranks.first.add_comm(7, "world"), b = ranks.second.add_comm(7, "world");
    call(ranks.first, a, kBcast), call(ranks.second, b, kBcast);
    call(ranks.first, a, kBcast, 1), call(ranks.second, b, kBcast, 2);
    const auto found = comparer.look();
    CHECK(found && found->number == 2 && found->comm == 7 && found->name == "world");
    CHECK(!last.look());  // it compares with later ranks only
    CHECK(at_end.look().has_value());
    if (found)
        CHECK_EQ(list_calls(*ranks.segment, names(), *found),
                 std::string("  rank 4: Bcast(root=1) at an unknown line\n"
                             "  rank 5: Bcast(root=2) at an unknown line   <-- other root\n"));
}

void differences() {
    const auto record = [](CallKind kind, uint64_t amount) { return CallRecord{1, kind, amount, 0, 0, 0, 0, 0}; };
    const CallRecord bcast = record({kBcast, uint8_t(DType::F64), kNone, 0}, 4);
    CHECK_EQ(difference(bcast, record({kAllreduce, uint8_t(DType::F64), 0, 0}, 4)), std::string("operation"));
    CHECK_EQ(difference(bcast, record({kBcast, uint8_t(DType::F32), kNone, 0}, 8)), std::string());  // as many bytes
    CHECK_EQ(difference(bcast, record({kBcast, uint8_t(DType::F64), kNone, 0}, 5)), std::string("count"));
    CHECK_EQ(difference(bcast, record({kBcast, kNone, kNone, 0}, kUnknownAmount)), std::string());
    const CallRecord sum = record({kAllreduce, uint8_t(DType::F64), 0, 0}, 4);
    CHECK_EQ(difference(sum, record({kAllreduce, uint8_t(DType::I64), 0, 0}, 4)), std::string("dtype"));
    CHECK_EQ(difference(sum, record({kAllreduce, uint8_t(DType::F64), 3, 0}, 4)), std::string("op"));
}

// A difference whose record has been overwritten since.
void overwritten() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment, 0);
    const uint32_t a = ranks.first.add_comm(7, "world"), b = ranks.second.add_comm(7, "world");
    call(ranks.first, a, kBcast), call(ranks.second, b, kAllreduce);
    for (uint32_t i = 0; i < 2 * kWatchedCalls; ++i) call(ranks.first, a, kBcast), call(ranks.second, b, kBcast);
    const auto found = comparer.look();
    CHECK(found && found->number > 2);
    if (found) CHECK(list_calls(*ranks.segment, names(), *found).find("an earlier call") != std::string::npos);
}

void other_communicators() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment, 0);
    const uint32_t a = ranks.first.add_comm(7, "rows"), b = ranks.second.add_comm(8, "columns");
    call(ranks.first, a, kBcast), call(ranks.second, b, kAllreduce);
    CHECK(!comparer.look());
    ranks.second.remove_comm(b);
    const uint32_t again = ranks.second.add_comm(7, "rows");
    CHECK_EQ(again, b);  // its place is used again
    call(ranks.second, again, kBcast);
    CHECK(!comparer.look());
}

void roll_calls() {
    Ranks ranks;
    const uint32_t a = ranks.first.add_comm(7, "world");
    const uint32_t site = ranks.first.add_site("train.py:12");
    const auto begun = ranks.first.begin(a, {kBcast, kNone, kNone, 1}, kUnknownAmount, site, 0);
    CHECK(!longest_call(*ranks.segment, 0, names(), 0));
    const auto call = longest_call(*ranks.segment, 0, names(), ticks() + 1);
    CHECK(call.has_value());
    if (call)
        CHECK_EQ(describe_call(*ranks.segment, 0, names(), *call),
                 std::string("Bcast(root=1) #1 on world at train.py:12"));
    const std::string text = roll_call(*ranks.segment, names(), Embedding::none);
    CHECK(text.find("rank 4: in Bcast(root=1) #1 on world at train.py:12 for 0.") != std::string::npos, text);
    CHECK(text.find("rank 5: in no call, and has made none") != std::string::npos, text);
    ranks.first.end(begun, false);
    CHECK(!longest_call(*ranks.segment, 0, names(), ticks() + 1));
}

// Of calls that return before they are complete, one that another rank has not made.
void unfollowed() {
    Ranks ranks;
    const uint32_t a = ranks.first.add_comm(7, "nccl", true), b = ranks.second.add_comm(7, "nccl", true);
    const uint32_t c = ranks.first.add_comm(8, "gloo"), d = ranks.second.add_comm(8, "gloo");
    call(ranks.first, c, kBcast), call(ranks.first, c, kBcast), call(ranks.second, d, kBcast);
    call(ranks.first, a, kAllreduce), call(ranks.second, b, kAllreduce);
    CHECK(!unfollowed_call(*ranks.segment, 0, ticks() + 1));
    call(ranks.first, a, kAllreduce);
    CHECK(!unfollowed_call(*ranks.segment, 0, 0));
    CHECK(!unfollowed_call(*ranks.segment, 1, ticks() + 1));
    const auto found = unfollowed_call(*ranks.segment, 0, ticks() + 1);
    CHECK(found && found->number == 2);
    call(ranks.second, b, kAllreduce);
    CHECK(!unfollowed_call(*ranks.segment, 0, ticks() + 1));
}

// Messages that are in progress keep their records.
void many_messages() {
    Ranks ranks;
    const auto first = ranks.first.begin(0, {kRecv, kNone, kNone, 1}, 5, 0, 0);
    for (uint32_t i = 0; i < 3 * kWatchedCalls; ++i) call(ranks.first, 0, kRecv, 2, 6);
    const auto call = longest_call(*ranks.segment, 0, names(), ticks() + 1);
    CHECK(call && to_string(*call, names()) == "Recv(source=1, tag=5)");
    ranks.first.end(first, false);
}

}  // namespace

int main() {
    matching();
    differing();
    differences();
    overwritten();
    other_communicators();
    roll_calls();
    unfollowed();
    many_messages();
    return check::result();
}
