#include "base/errors.hpp"

#include <cstdio>

namespace rankwise {

std::string seconds(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g s", value);
    return text;
}

std::string mib(size_t bytes) { return std::to_string((bytes >> 20) + (bytes % (1 << 20) > 0)) + " MiB"; }

std::string list_ranks(const std::vector<int>& ranks) {
    std::string list;
    for (size_t i = 0; i < ranks.size();) {
        size_t last = i;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
        if (last < i + 2) last = i;
        std::string run = std::to_string(ranks[i]);
        if (last > i) run.append("-").append(std::to_string(ranks[last]));
        add_to_list(list, run);
        i = last + 1;
    }
    return (ranks.size() == 1 ? "rank " : "ranks ") + list;
}

}  // namespace rankwise
