// Root's slot holds a piece for every other rank, side by side; each copies out its own, or
// reads it in place.
#include <optional>

#include "collectives/collectives.hpp"

namespace rankwise::collectives {

// The others read their blocks in root's memory while it copies its own, and of two ranks some of the other's.
// False where root's memory cannot be reached; then nothing was done.
static bool scatter_direct(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    const bool from_me = s.rank == root;
    const size_t some = to_take_over(s, blocks, root);
    Loan loan(s, from_me ? s.readable(send, blocks.total()) : nullptr, some && !from_me ? s.readable(recv, blocks.size(s.rank)) : nullptr);
    loan.await_all();  // from here on all agree: what others refuse must not change recv
    if (!loan.lends(root, false)) return loan.finish_all(), false;
    const size_t taken = some && loan.lends(1 - root, true) && !loan.registered(root, false) ? some : 0;
    if (from_me) {
        keep_own(s, recv, send + blocks.offset(root), blocks.size(root), blocks.total());
        if (const int other = 1 - root; taken) {
            const size_t read = blocks.size(other) - taken;
            loan.write(other, send + blocks.offset(other) + read, read, taken);
        }
        return loan.finish_all(), true;
    }
    loan.read(root, recv, blocks.offset(s.rank), blocks.size(s.rank) - taken);
    return loan.finish_with(root), true;
}

void scatter(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    const bool from_me = s.rank == root;
    const size_t mine = blocks.size(s.rank);
    if (blocks.total() <= kInline) {  // beside the flag: all of it to all
        const uint64_t step = s.post(send, from_me ? blocks.total() : 0);
        if (!from_me) s.await_giver(root, step);
        if (mine) std::memcpy(recv, (from_me ? send : s.payload(root, step)) + blocks.offset(s.rank), mine);
        return;
    }
    if (goes_direct(s, blocks.largest(), from_me ? send : nullptr, blocks.total()) && scatter_direct(s, send, recv, blocks, root)) return;
    const Copy copy_out = s.copy_for(blocks.total());
    const SideBySide cut(s, blocks.largest());
    pipeline(
        s, cut.rounds, cut.bytes, from_me,
        [&](uint64_t g, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == root) continue;
                const Piece p(k, cut.piece, blocks.size(to));
                std::memcpy(s.slot(root, g) + cut.place(root, to), send + blocks.offset(to) + p.offset, p.bytes);
            }
        },
        [&](uint64_t g, uint64_t k, uint64_t step) {
            if (from_me) return;
            const Piece p(k, cut.piece, mine);
            if (k == 0 && cut.rounds > 1) s.await_all(step);  // a call that others refuse must not change recv
            else s.await(root, step);
            copy_out(recv + p.offset, s.slot(root, g) + cut.place(root, s.rank), p.bytes);
        });
    if (from_me) keep_own(s, recv, send + blocks.offset(root), mine, blocks.total());
}

namespace {

// Parts that come along with the words, of so many bytes each: all of them beside the flag, or in root's slot.
struct Along {
    size_t part;
    bool beside;
};

// The words alone say it, so that all ranks agree.
std::optional<Along> comes_along(const Steps& s, const ArrayWords& words) {
    if (words.dims < 1 || words.dims > ArrayWords::kDims || words.dim[0] % s.n) return std::nullopt;
    const size_t part = words.bytes() / size_t(s.n);
    const bool beside = words.told() + part * size_t(s.n) <= kInline;
    const bool fits_slot = s.n == 1 || (part < kDirectFrom && part <= share_of_slot(s));
    return beside || fits_slot ? std::optional(Along{part, beside}) : std::nullopt;
}

// The way through root's slot; not inlined, as in pipeline().
[[gnu::noinline]] void give_parts(Steps& s, const ArrayWords& words, const uint8_t* send, size_t part) {
    const SideBySide cut(s, part);
    const uint64_t taken = s.take(cut.bytes);
    s.claim(taken);
    for (int to = 0; to < s.n; ++to)
        if (to != s.rank) std::memcpy(s.slot(s.rank, taken) + cut.place(s.rank, to), send + size_t(to) * part, part);
    s.post(&words, words.told());
    s.release(taken);
}

[[gnu::noinline]] void take_part(Steps& s, const Place& place, size_t part, int root) {
    const SideBySide cut(s, part);
    const uint64_t taken = s.take(cut.bytes);  // before `place`, which may throw
    std::memcpy(place(part), s.slot(root, taken) + cut.place(root, s.rank), part);
    s.release(taken);
}

}  // namespace

bool scatter_told(Steps& s, ArrayWords& words, const uint8_t* send, uint8_t* recv, const Place& place, int root) {
    if (s.rank == root) {
        const std::optional<Along> along = comes_along(s, words);
        const size_t told = words.told();
        if (along && along->beside) {
            const size_t total = along->part * size_t(s.n);
            if (total) std::memcpy(reinterpret_cast<uint8_t*>(&words) + told, send, total);
            s.post(&words, told + total);
        } else if (along && s.n > 1) {
            give_parts(s, words, send, along->part);
        } else {
            s.post(&words, told);
        }
        if (along && along->part) keep_own(s, recv, send + size_t(root) * along->part, along->part, along->part);
        return along.has_value();
    }
    const uint64_t step = s.post();
    s.await_giver(root, step);
    std::memcpy(&words, s.payload(root, step), sizeof words);
    const std::optional<Along> along = comes_along(s, words);
    if (!along) return false;
    if (along->beside) {
        uint8_t* to = place(along->part);
        if (along->part) std::memcpy(to, s.payload(root, step) + words.told() + size_t(s.rank) * along->part, along->part);
        return true;
    }
    take_part(s, place, along->part, root);
    return true;
}

}  // namespace rankwise::collectives
