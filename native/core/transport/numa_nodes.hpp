// The ranks of a group by NUMA node.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rankwise {

struct NumaNodes {
    std::vector<std::vector<int>> members;  // the ranks of each node; the node with the lowest rank first
    std::vector<int> of;                    // by rank: the index of its node in `members`
    std::vector<int> place;                 // by rank: its index among its node's members

    NumaNodes() = default;  // unknown
    // numbers: the number of each rank's node, negative if it is unknown. If one is unknown, all count as unknown.
    explicit NumaNodes(const std::vector<int>& numbers) {
        if (std::any_of(numbers.begin(), numbers.end(), [](int number) { return number < 0; })) return;
        std::vector<int> seen;  // the numbers of the nodes in `members`
        for (int rank = 0; rank < int(numbers.size()); ++rank) {
            const auto found = std::find(seen.begin(), seen.end(), numbers[rank]) - seen.begin();
            if (size_t(found) == seen.size()) seen.push_back(numbers[rank]), members.emplace_back();
            of.push_back(int(found));
            place.push_back(int(members[found].size()));
            members[found].push_back(rank);
        }
    }
    // The nodes of a group of these ranks, in this order.
    NumaNodes part(const std::vector<int>& ranks) const {
        std::vector<int> numbers;
        for (int rank : ranks) numbers.push_back(known() ? of[rank] : -1);
        return NumaNodes(numbers);
    }
    bool known() const { return !members.empty(); }
    size_t smallest() const {
        size_t least = members[0].size();
        for (const auto& node : members) least = std::min(least, node.size());
        return least;
    }
    // Whether by_node may be chosen without being forced: there are several nodes, at least one has several ranks, and
    // the ranks of each node are consecutive, so that by_node reduces in rank order.
    bool divide() const {
        return members.size() > 1 && members.size() < of.size() && std::is_sorted(of.begin(), of.end());
    }
};

}  // namespace rankwise
