// Tests that the core takes pages to have any size, and not 4 KiB. On a machine with small pages it pretends large
// ones.
#include <sys/resource.h>
#include <sys/stat.h>

#include <vector>

#include "ranks.hpp"
#include "shared_block.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

bool at_page(uint64_t offset) { return offset % page_bytes() == 0; }

size_t memory_of(const Segment& segment) {
    struct stat file;
    CHECK_EQ(fstat(segment.fd(), &file), 0);
    return size_t(file.st_blocks) * 512;
}

// Whatever has memory of its own begins with a page.
void parts_begin_with_pages(int n) {
    CHECK(at_page(SegmentLayout(n).heap));
    ranks::run(n, [](Comm& c) {
        const Segment& segment = *c.segment();
        CHECK(at_page(segment.header().bytes));
        const GroupSegment& group = *segment.at<GroupSegment>(segment.header().world_group);
        CHECK(at_page(segment.header().world_group) && at_page(group.staging));
        const auto first = c.allocate(1), second = c.allocate(page_bytes() + 1);
        CHECK(at_page(segment.offset_of(first->data())) && at_page(segment.offset_of(second->data())));
        const auto shared = c.shared_block(1);
        CHECK(at_page(shared->offset()));
    });
}

// What is given memory is given whole pages.
void memory_comes_in_pages() {
    const auto segment = Segment::create(2);
    const Heap& heap = segment->heap();
    heap.allocate(1, BlockKind::Text);  // with it, the heap's table
    for (const size_t bytes : {size_t(1), page_bytes() / 2, page_bytes(), page_bytes() + 1}) {
        const size_t before = memory_of(*segment);
        const uint64_t block = heap.allocate(bytes, BlockKind::Text);
        CHECK_EQ(memory_of(*segment) - before, round_up(bytes, page_bytes()));
        heap.release(block);
        CHECK_EQ(memory_of(*segment), before);
    }
}

// The smallest segment that is not refused has room for the group of all ranks.
void the_least_segment_suffices(int n) {
    const size_t least = SegmentLayout(n).heap + Heap::bytes_for(group_segment_bytes(size_t(n)));
    rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit small{round_up(least, page_bytes()), limit.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_EQ(thrown([&] { Segment::create(n); }), "");
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

void pages_that_are_larger_than_blocks_are_refused() {
    pretended_page_bytes = 128 * KiB;
    std::string said;
    try {
        Segment::create(2);
    } catch (const Error& e) {
        said = e.what();
    }
    CHECK_EQ(said, "this system has pages of 128 KiB, and rankwise needs pages of 64 KiB or less");
}

}  // namespace

int main() {
    if (ranks::pretended) CHECK_EQ(page_bytes(), ranks::pretended);
    for (const size_t bytes : {size_t(0), 16 * KiB, 64 * KiB}) {
        pretended_page_bytes = bytes;
        for (const int n : {1, 2, 3, 8}) parts_begin_with_pages(n);
        for (const int n : {1, 2, kMaxRanks}) the_least_segment_suffices(n);
        memory_comes_in_pages();
    }
    pages_that_are_larger_than_blocks_are_refused();
    return check::result();
}
