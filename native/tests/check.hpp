// Checks for the native tests. A failing check prints its place and values, and the test continues; main ends with
// `return check::result();`. Any thread may check.
#pragma once
#include <atomic>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>

#include "hang.hpp"

namespace check {

inline std::atomic<int> failures{0};

inline void fail(const char* file, int line, const std::string& what) {
    constexpr int kPrinted = 50;
    if (failures.fetch_add(1) >= kPrinted) return;
    std::ostringstream text;
    text << file << ':' << line << ": " << what << '\n';
    std::cerr << text.str();
}

// Characters and the like print as numbers.
template <class T> decltype(auto) printable(const T& x) {
    if constexpr (std::is_enum_v<T>) return +static_cast<std::underlying_type_t<T>>(x);
    else if constexpr (std::is_arithmetic_v<T>) return +x;
    else return (x);
}

template <class A, class B>
void equal(const A& a, const B& b, const char* text_a, const char* text_b, const char* file, int line) {
    if (a == b) return;
    std::ostringstream what;
    what << text_a << " is " << printable(a) << ", " << text_b << " is " << printable(b);
    fail(file, line, what.str());
}

// The exit status of the test.
inline int result() {
    if (failures != 0) std::cerr << failures << " checks failed\n";
    return failures == 0 ? 0 : 1;
}

}  // namespace check

// CHECK(condition) or CHECK(condition, values << to << print).
#define CHECK(condition, ...)                                  \
    do {                                                       \
        if (!(condition)) {                                    \
            std::ostringstream check_what;                     \
            check_what << "not true: " #condition;             \
            __VA_OPT__(check_what << "; " << __VA_ARGS__;)     \
            check::fail(__FILE__, __LINE__, check_what.str()); \
        }                                                      \
    } while (false)

#define CHECK_EQ(a, b) check::equal((a), (b), #a, #b, __FILE__, __LINE__)
