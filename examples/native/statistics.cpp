// Mean, variance and extremes of numbers of any type that are spread over the ranks; templates choose the dtype.
//
//   c++ -std=c++20 -O2 statistics.cpp -o statistics $(pkg-config --cflags --libs rankwise)
//   rankwise run -n 4 -- ./statistics
#include <rankwise.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <vector>

template <class T> constexpr rankwise_dtype kDtype = T::unsupported;
template <> constexpr rankwise_dtype kDtype<double> = RANKWISE_F64;
template <> constexpr rankwise_dtype kDtype<float> = RANKWISE_F32;
template <> constexpr rankwise_dtype kDtype<int64_t> = RANKWISE_I64;
template <> constexpr rankwise_dtype kDtype<uint8_t> = RANKWISE_U8;

void check(int status) {
    if (status != RANKWISE_OK) throw std::runtime_error(rankwise_error_message());
}

struct Communicator {
    rankwise_comm comm = nullptr;
    Communicator() { check(rankwise_init(&comm)); }
    ~Communicator() { rankwise_close(&comm, 1); }
    Communicator(const Communicator&) = delete;

    template <class T> T all_reduce(T value, rankwise_op op) {
        check(rankwise_all_reduce(comm, &value, 1, kDtype<T>, op));
        return value;
    }
};

template <class T> void summarise(Communicator& ranks, const char* name, std::span<const T> numbers) {
    double sum = 0, squares = 0;
    T low = numbers[0], high = numbers[0];
    for (const T x : numbers) {
        sum += double(x), squares += double(x) * double(x);
        low = x < low ? x : low, high = x > high ? x : high;
    }
    const double count = double(ranks.all_reduce(int64_t(numbers.size()), RANKWISE_SUM));
    const double mean = ranks.all_reduce(sum, RANKWISE_SUM) / count;
    const double variance = ranks.all_reduce(squares, RANKWISE_SUM) / count - mean * mean;
    low = ranks.all_reduce(low, RANKWISE_MIN), high = ranks.all_reduce(high, RANKWISE_MAX);
    if (rankwise_rank(ranks.comm) == 0)
        std::printf("%s: mean %g, variance %g, from %g to %g\n", name, mean, variance, double(low), double(high));
}

template <class T> std::vector<T> numbers(int rank) {
    std::vector<T> all(10);
    for (size_t i = 0; i < all.size(); ++i) all[i] = T(10 * size_t(rank) + i);
    return all;
}

int main() try {
    Communicator ranks;
    const int rank = rankwise_rank(ranks.comm);
    summarise<double>(ranks, "double", numbers<double>(rank));
    summarise<float>(ranks, "float", numbers<float>(rank));
    summarise<int64_t>(ranks, "int64", numbers<int64_t>(rank));
    summarise<uint8_t>(ranks, "uint8", numbers<uint8_t>(rank));
} catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
