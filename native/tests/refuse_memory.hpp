// For tests of what happens without memory.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "check.hpp"

// Whether the kernel takes filters of system calls; an emulator's does not, and a line says so.
inline bool can_refuse(const char* what) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr) == -1 && errno == EFAULT) return true;
    std::printf("not tested: %s: system calls cannot be refused here\n", what);
    return false;
}

// From now on these system calls fail with `error` in this thread, or in all threads of the process.
inline void refuse_calls(const std::vector<int>& calls, int error, bool in_all_threads = false) {
    std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (int call : calls) {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(call), 0, 1));
        program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | uint32_t(error)));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    const unsigned flags = in_all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    CHECK_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter), 0);
}

// From now on this thread gets no memory for the segment.
inline void refuse_memory() { refuse_calls({SYS_fallocate}, ENOSPC); }

// From now on this thread can start no other.
inline void refuse_threads() { refuse_calls({SYS_clone, SYS_clone3}, EAGAIN); }
