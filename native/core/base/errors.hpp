// The exceptions of the core. The bindings translate each type in one place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rankwise {

using RankTexts = std::vector<std::pair<int, std::string>>;  // a text for each of several ranks

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct PeerLost : Error {
    int rank;
    std::string how, operation;
    int64_t sequence;
    std::string host;
    int pid;
    PeerLost(const std::string& text, int rank, std::string how, std::string operation, int64_t sequence,
             std::string host = "", int pid = 0)
        : Error(text), rank(rank), how(std::move(how)), operation(std::move(operation)), sequence(sequence),
          host(std::move(host)), pid(pid) {}
};

struct Mismatch : Error {
    RankTexts calls, sites;
    std::vector<int> different;  // ranks whose calls differ from the most frequent one
    int64_t sequence;
    Mismatch(const std::string& text, RankTexts calls, RankTexts sites, std::vector<int> different, int64_t sequence)
        : Error(text), calls(std::move(calls)), sites(std::move(sites)), different(std::move(different)),
          sequence(sequence) {}
};

struct TimedOut : Error {
    double limit;
    std::vector<int> missing;
    RankTexts states;
    std::string operation;
    int64_t sequence;
    RankTexts stacks;
    TimedOut(const std::string& text, double limit, std::vector<int> missing, RankTexts states, std::string operation,
             int64_t sequence, RankTexts stacks = {})
        : Error(text), limit(limit), missing(std::move(missing)), states(std::move(states)),
          operation(std::move(operation)), sequence(sequence), stacks(std::move(stacks)) {}
};

struct Closed : Error {
    using Error::Error;
};
struct BadArgument : Error {
    using Error::Error;
};

// The backend cannot do this, here or for this call. The group does not fail.
struct Unsupported : Error {
    std::string operation, backend, why;
    Unsupported(std::string operation, std::string backend, std::string why)
        : Error(operation + ": " + why), operation(std::move(operation)), backend(std::move(backend)),
          why(std::move(why)) {}
};

struct OutOfMemory : Error {
    using Error::Error;
};

// The number, if it is from 0 to end - 1. Throws BadArgument for any other: "dtype: 99 given, expected a DType".
// expected: by default "0 to 7".
inline int checked_number(const char* argument, int number, int end, const char* expected = nullptr) {
    if (number >= 0 && number < end) return number;
    throw BadArgument(std::string(argument) + ": " + std::to_string(number) + " given, expected " +
                      (expected ? expected : "0 to " + std::to_string(end - 1)));
}

// Seconds that one wait may take. Throws BadArgument for NaN and for less than 0.
inline double checked_seconds(double seconds) {
    if (seconds >= 0) return seconds;
    throw BadArgument("timeout: " + std::to_string(seconds) + " given, expected seconds, at least 0");
}

// Parts of an error's text.
std::string seconds(double value);                      // "2.5 s"
std::string mib(size_t bytes);                          // "3 MiB"
std::string list_ranks(const std::vector<int>& ranks);  // "rank 3", "ranks 0-2, 5"
// Adds an item to a list.
inline void add_to_list(std::string& list, std::string_view item, std::string_view separator = ", ") {
    if (!list.empty()) list += separator;
    list += item;
}

// The embedding stopped the wait (in Python: an exception is pending).
struct Interrupted : Error {
    Interrupted() : Error("interrupted") {}
};

}  // namespace rankwise
