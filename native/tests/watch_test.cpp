// Tests that the calls that ranks record are compared, and which differences are found.
#include "ranks.hpp"
#include "watch/call_comparer.hpp"
#include "watch/roll_call.hpp"

using namespace rankwise;

namespace {

enum : uint16_t { kBcast, kAllreduce, kRecv };

CallNames names() {
    return {{{"Bcast", Op::Broadcast, false, "root"}, {"Allreduce", Op::AllReduce}, {"Recv", Op::Recv, true, "source"}},
            {"SUM", "PROD", "MIN", "MAX"}};
}

struct Ranks {
    std::shared_ptr<Segment> segment = Segment::create(3);
    CallWriter first{segment, 0, 4, names()}, second{segment, 1, 5, names()}, third{segment, 2, 6, names()};
};

WatchedCall described(uint16_t operation, int root = 0, uint64_t amount = kUnknownAmount, uint8_t dtype = kNone) {
    WatchedCall call;
    call.operation = operation;
    call.root = root;
    call.reduction = operation == kAllreduce ? uint8_t(ReduceOp::SUM) : kNone;
    call.amount = amount;
    call.dtype = dtype;
    return call;
}

void call(CallWriter& writer, uint16_t comm, uint16_t operation, int root = 0, uint64_t amount = kUnknownAmount) {
    writer.end(writer.begin(comm, described(operation, root, amount), 0), false);
}

void matching() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment);
    const uint16_t a = ranks.first.add_comm(7, "world"), b = ranks.second.add_comm(7, "world");
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
    CallComparer comparer(*ranks.segment);
    const uint16_t a = ranks.first.add_comm(7, "world"), b = ranks.second.add_comm(7, "world");
    call(ranks.first, a, kBcast), call(ranks.second, b, kBcast);
    call(ranks.first, a, kBcast, 1), call(ranks.second, b, kBcast, 2);
    const auto found = comparer.look();
    CHECK(found && found->number == 2 && found->comm == 7 && comm_of(*ranks.segment, *found) == "world");
    CHECK(!comparer.look());  // since then
    if (found)
        CHECK_EQ(list_calls(*ranks.segment, names(), *found),
                 std::string("  rank 4: Bcast(root=1) at an unknown line\n"
                             "  rank 5: Bcast(root=2) at an unknown line   <-- other root\n"));
}

void differences() {
    const uint8_t f64 = uint8_t(DType::F64), f32 = uint8_t(DType::F32), i64 = uint8_t(DType::I64);
    const WatchedCall bcast = described(kBcast, 0, 4, f64), sum = described(kAllreduce, 0, 4, f64);
    CHECK_EQ(difference(bcast, sum), std::string("operation"));
    CHECK_EQ(difference(bcast, described(kBcast, 0, 8, f32)), std::string());  // as many bytes
    CHECK_EQ(difference(bcast, described(kBcast, 0, 5, f64)), std::string("count"));
    CHECK_EQ(difference(bcast, described(kBcast)), std::string());
    CHECK_EQ(difference(sum, described(kAllreduce, 0, 4, i64)), std::string("dtype"));
    WatchedCall max = sum;
    max.reduction = uint8_t(ReduceOp::MAX);
    CHECK_EQ(difference(sum, max), std::string("op"));
}

// A difference whose record has been overwritten since.
void overwritten() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment);
    const uint16_t a = ranks.first.add_comm(7, "world"), b = ranks.second.add_comm(7, "world");
    call(ranks.first, a, kBcast), call(ranks.second, b, kAllreduce);
    for (uint32_t i = 0; i < 2 * kWatchedCalls; ++i) call(ranks.first, a, kBcast), call(ranks.second, b, kBcast);
    const auto found = comparer.look();
    CHECK(found && found->number > 2);
    if (found) CHECK(list_calls(*ranks.segment, names(), *found).find("an earlier call") != std::string::npos);
}

void other_communicators() {
    Ranks ranks;
    CallComparer comparer(*ranks.segment);
    const uint16_t a = ranks.first.add_comm(7, "rows"), b = ranks.second.add_comm(8, "columns");
    call(ranks.first, a, kBcast), call(ranks.second, b, kAllreduce);
    CHECK(!comparer.look());
    ranks.second.remove_comm(b);
    const uint16_t again = ranks.second.add_comm(7, "rows");
    CHECK_EQ(again, b);  // its place is used again
    call(ranks.second, again, kBcast);
    CHECK(!comparer.look());
}

void roll_calls() {
    Ranks ranks;
    const uint16_t a = ranks.first.add_comm(7, "world");
    WatchedCall bcast = described(kBcast, 1);
    bcast.site = ranks.first.add_text("train.py:12");
    CHECK(!longest_call(*ranks.segment, 0));
    const auto begun = ranks.first.begin(a, bcast, 0);
    const auto call = longest_call(*ranks.segment, 0);
    CHECK(call.has_value());
    if (call)
        CHECK_EQ(describe_call(*ranks.segment, names(), *call),
                 std::string("Bcast(root=1) #1 on world at train.py:12"));
    const std::string text = roll_call(*ranks.segment, names(), Embedding::none);
    CHECK(text.find("rank 4: in Bcast(root=1) #1 on world at train.py:12 for 0.") != std::string::npos, text);
    CHECK(text.find("rank 5: in no call, and has made none") != std::string::npos, text);
    ranks.first.end(begun, false);
    CHECK(!longest_call(*ranks.segment, 0));
}

// Of calls that return before they are complete, one that another rank has not made.
void unfollowed() {
    Ranks ranks;
    const uint16_t a = ranks.first.add_comm(7, "nccl", true), b = ranks.second.add_comm(7, "nccl", true);
    const uint16_t c = ranks.first.add_comm(8, "gloo"), d = ranks.second.add_comm(8, "gloo");
    call(ranks.first, c, kBcast), call(ranks.first, c, kBcast), call(ranks.second, d, kBcast);
    call(ranks.first, a, kAllreduce), call(ranks.second, b, kAllreduce);
    CallComparer comparer(*ranks.segment);
    CHECK(!comparer.look() && !comparer.unfollowed());
    call(ranks.first, a, kAllreduce);
    CHECK(!comparer.look());
    const auto found = comparer.unfollowed();
    CHECK(found && found->rank == 0 && found->number == 2);
    call(ranks.second, b, kAllreduce);
    CHECK(!comparer.look() && !comparer.unfollowed());
}

// Messages that are in progress keep their records.
void many_messages() {
    Ranks ranks;
    const auto first = ranks.first.begin(0, described(kRecv, 1, 5), 0);
    for (uint32_t i = 0; i < 3 * kWatchedCalls; ++i) call(ranks.first, 0, kRecv, 2, 6);
    const auto call = longest_call(*ranks.segment, 0);
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
