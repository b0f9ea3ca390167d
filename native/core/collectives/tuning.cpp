#include "collectives/tuning.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/mix.hpp"
#include "base/types.hpp"

namespace rankwise::tuning {

namespace {

template <class List, class Name> std::string joined(const List& list, Name&& name) {
    std::string text;
    for (const auto& item : list) add_to_list(text, name(item));
    return text;
}

// Why the algorithm cannot run, or "".
std::string obstacle(const Conditions& c, Op op, const Extent& e, Algorithm algorithm) {
    using enum Algorithm;
    const size_t bytes = in_header(op, e), limit = algorithm == Inline ? kInline : kFlatLimit;
    if (algorithm == Inline || (algorithm == Flat && op == Op::AllReduce))
        if (bytes > limit)
            return "it takes at most " + std::to_string(limit) + " bytes, and this call has " + std::to_string(bytes);
    if (splits(algorithm) && c.ranks != 2)
        return "it needs a group of two ranks, and this one has " + std::to_string(c.ranks);
    if ((algorithm == SingleCopy || algorithm == SingleCopyPut || algorithm == SingleCopySplit) && !c.single_copy)
        return "it needs ranks that can read and write each other's memory, which the system or RANKWISE_DIRECT=0 "
               "forbids here";
    return "";
}

[[noreturn]] void refuse(const Conditions& c, Op op, Algorithm algorithm, const std::string& why) {
    throw Unsupported(std::string("RANKWISE_ALGORITHM=") + rankwise::name(op) + "=" + name(algorithm), c.backend, why);
}

using Entry = std::pair<Op, std::vector<Algorithm>>;

// The operation of this name and its algorithms, or null.
const Entry* find(const std::string& name) {
    const auto found = std::find_if(algorithms().begin(), algorithms().end(),
                                    [&](const Entry& e) { return rankwise::name(e.first) == name; });
    return found == algorithms().end() ? nullptr : &*found;
}

// "'allreduce' given to shm, expected one of all_reduce, ..."
std::string no_operation(const std::string& name, const std::string& where) {
    return "'" + name + "' given" + where + ", expected one of " +
           joined(algorithms(), [](const Entry& e) { return rankwise::name(e.first); });
}

}  // namespace

Choice forced(const Conditions& c, Op op, const Extent& e, Algorithm algorithm) {
    if (const std::string why = obstacle(c, op, e, algorithm); !why.empty()) refuse(c, op, algorithm, why);
    return algorithm;
}

void none_can_run(const Conditions& c, Op op) {
    const Algorithm algorithm = c.forced[size_t(op)];
    using enum Algorithm;
    const bool registered = algorithm == Registered || algorithm == RegisteredPut || algorithm == RegisteredSplit;
    refuse(c, op, algorithm,
           registered ? "it needs registered buffers (group.empty) on all ranks, and some rank passed another buffer"
                      : "it needs memory that the other ranks can read and write, and some rank passed other memory");
}

const char* name(Algorithm algorithm) {
    constexpr const char* names[kAlgorithms] = {"none",
                                                "inline",
                                                "flat",
                                                "staged",
                                                "single_copy",
                                                "single_copy_put",
                                                "single_copy_split",
                                                "registered",
                                                "registered_put",
                                                "registered_split"};
    return size_t(algorithm) < kAlgorithms ? names[size_t(algorithm)] : "unknown";
}

const std::vector<std::pair<Op, std::vector<Algorithm>>>& algorithms() {
    using enum Algorithm;
    static const std::vector<std::pair<Op, std::vector<Algorithm>>> all = {
        {Op::AllReduce, {Inline, Flat, Staged, SingleCopy, Registered}},
        {Op::Broadcast, {Inline, Staged, SingleCopy, SingleCopySplit, Registered, RegisteredSplit}},
        {Op::Reduce, {Inline, Flat, Staged, SingleCopy, Registered}},
        {Op::AllGather, {Inline, Staged, SingleCopy, SingleCopyPut, Registered, RegisteredPut}},
        {Op::Gather, {Inline, Staged, SingleCopy, Registered}},
        {Op::Scatter, {Inline, Staged, SingleCopy, Registered}},
        {Op::ReduceScatter, {Inline, Staged, SingleCopy, Registered}},
        {Op::AllToAll, {Inline, Staged, SingleCopy, Registered}},
    };
    return all;
}

Op op_named(const std::string& name) {
    if (const Entry* found = find(name)) return found->first;
    throw BadArgument("operation: " + no_operation(name, ""));
}

Forced parse_forced(const std::vector<std::pair<std::string, std::string>>& names, const std::string& backend) {
    Forced forced{};
    for (const auto& [operation, chosen] : names) {
        const std::string& algorithm = chosen;  // clang 14 has no bindings in lambdas
        const Entry* entry = find(operation);
        if (!entry) throw BadArgument("RANKWISE_ALGORITHM: the operation " + no_operation(operation, " to " + backend));
        const auto& [op, list] = *entry;
        const auto found = std::find_if(list.begin(), list.end(), [&](Algorithm a) { return name(a) == algorithm; });
        if (found == list.end())
            throw BadArgument("RANKWISE_ALGORITHM: the algorithm '" + algorithm + "' given for " + operation + " of " +
                              backend + ", expected one of " + joined(list, [](Algorithm a) { return name(a); }));
        for (Op each = op; each != Op::None; each = row_of(each).variant) forced[size_t(each)] = *found;
    }
    return forced;
}

std::string text_of(const Forced& forced) {
    std::string text;
    for (const auto& [op, list] : algorithms())
        if (const Algorithm algorithm = forced[size_t(op)]; algorithm != Algorithm::None)
            add_to_list(text, std::string(rankwise::name(op)) + "=" + name(algorithm), ",");
    return text.empty() ? "nothing" : text;
}

Tuning parse_tuning(const std::vector<NamedValue>& values, bool slow_single_copies) {
    Tuning tuning;
    if (slow_single_copies) tuning.begin_single_copies_later();
    const auto named = [](const auto& list, const std::string& name, const char* what) {
        const auto found =
            std::find_if(std::begin(list), std::end(list), [&](const auto& one) { return one.first == name; });
        if (found != std::end(list)) return found->second;
        throw BadArgument(std::string("tuning: ") + what + " '" + name + "' given, expected one of " +
                          joined(list, [](const auto& one) { return one.first; }));
    };
    for (const auto& [cores, threshold, value] : values)
        tuning.*named(kCores, cores, "the cores").*named(kThresholds, threshold, "the threshold") = value;
    return tuning;
}

std::vector<Algorithm> choices(const Conditions& c, Op op, size_t bytes, size_t non_temporal_from) {
    const size_t n = size_t(c.ranks);
    const Extent extent = op == Op::AllGather || op == Op::Gather ? Extent(bytes, bytes * n) : Extent(bytes / n, bytes);
    const Algorithm only = bytes ? c.forced[size_t(op)] : Algorithm::None;
    std::vector<Algorithm> all;
    if (only != Algorithm::None && !obstacle(c, op, extent, only).empty()) return all;
    Choice choice = only == Algorithm::None ? choose(c, op, extent, bytes * n * n >= non_temporal_from) : only;
    for (; choice.first() != Algorithm::None; choice = choice.rest()) all.push_back(choice.first());
    return all;
}

}  // namespace rankwise::tuning

void rankwise::Tuning::begin_single_copies_later() {
    for (const auto& [cores, thresholds] : tuning::kCores) {
        Thresholds& t = this->*thresholds;
        t.single_copy_scatter = std::max(t.single_copy_scatter, 128 * KiB);
        for (size_t* from : {&t.single_copy_all_reduce, &t.single_copy_broadcast, &t.single_copy_all_gather,
                             &t.single_copy_gather, &t.single_copy_all_to_all, &t.put_all_gather})
            *from = std::max(*from, 4 * MiB);
    }
}

uint64_t rankwise::Tuning::digest() const {
    uint64_t result = 0;
    for (const auto& [cores, thresholds] : tuning::kCores)
        for (const auto& [name, value] : tuning::kThresholds) result = mix(result, this->*thresholds.*value);
    return result;
}
