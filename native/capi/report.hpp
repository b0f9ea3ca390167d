// What a rank reports to its launcher about why its program fails, as src/rankwise/system/failure_report.py reads it.
#pragma once
#include <string>

#include "base/errors.hpp"

namespace rankwise::capi {

struct Failure {
    const char* kind = "error";  // as in src/rankwise/contract/failure_kinds.py
    std::string message{};
    int64_t sequence = -1;
    RankTexts ranks{};  // what each rank called or where it is
    int to_blame = -1;  // a rank
};

// From now on this process is this rank of a launcher that reads what its ranks report in the memory behind `fd`.
void report_to(int fd, int rank);
// The last failure of a group.
void report_failure(const Failure& failure);
// The error with which the program ends.
void report_end(const Failure& error);

}  // namespace rankwise::capi
