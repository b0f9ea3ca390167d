// The names of a tuning file and of RANKWISE_ALGORITHM, and what the tuning table then chooses.
#include "collectives/tuning.hpp"
#include "input.hpp"

using namespace rankwise;

namespace {

// A name that exists, or any text.
template <class List, class Name> std::string named(Input& input, const List& list, Name&& name) {
    const size_t which = input.below(std::size(list) + 1);
    return which < std::size(list) ? std::string(name(list[which])) : input.text();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input input(data, size);
    const auto first = [](const auto& one) { return one.first; };
    std::vector<std::pair<std::string, std::string>> algorithms;
    std::vector<tuning::NamedValue> values;
    Conditions conditions{input.one_of({1, 2, 3, 8, 1024}),
                          bool(input.below(2)),
                          bool(input.below(2)),
                          bool(input.below(2)),
                          false,
                          {},
                          "shm"};
    const size_t bytes = input.below(2) ? input.take<uint16_t>() : input.take<uint64_t>() >> 8;
    while (!input.ended()) {
        if (input.below(2)) {
            const auto operation = named(input, tuning::algorithms(), [](const auto& one) { return name(one.first); });
            algorithms.emplace_back(operation,
                                    input.below(3) ? tuning::name(Algorithm(input.below(12))) : input.text());
        } else {
            const auto cores = named(input, tuning::kCores, first),
                       threshold = named(input, tuning::kThresholds, first);
            values.emplace_back(cores, threshold, input.take<uint64_t>());
        }
    }
    try {
        const Tuning tuning = tuning::parse_tuning(values, bytes % 2);
        tuning.digest();
        conditions.thresholds =
            tuning.*tuning::kCores[tuning::cores_of(conditions.oversubscribed, conditions.yields)].second;
        conditions.forced = tuning::parse_forced(algorithms, "shm");
        tuning::text_of(conditions.forced);
    } catch (const BadArgument&) {
        return 0;
    }
    for (const auto& [op, list] : tuning::algorithms())
        for (const Algorithm chosen : tuning::choices(conditions, op, bytes, 1 << 20))
            if (std::find(list.begin(), list.end(), chosen) == list.end()) __builtin_trap();
    return 0;
}
