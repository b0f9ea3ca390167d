// A native test that takes longer than RANKWISE_TEST_LIMIT seconds shows its threads' stacks, and fails. So does a
// process that a test forks, when the alarm that the process has set for itself goes off.
#pragma once
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hang {

inline void show_stacks(int) {
    char pid[16] = {};
    std::to_chars(pid, pid + sizeof pid - 1, getpid());
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // lets the child read its parent even where only the reverse is allowed
    const pid_t child = fork();
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execlp("eu-stack", "eu-stack", "-p", pid, nullptr);
        constexpr char text[] = "a test hangs; without eu-stack (apt install elfutils) its stacks cannot be shown\n";
        _exit(write(STDERR_FILENO, text, sizeof text - 1) < 0);
    }
    waitpid(child, nullptr, 0);
    _exit(2);
}

inline const bool watched = [] {
    std::signal(SIGALRM, show_stacks);
    if (const char* seconds = std::getenv("RANKWISE_TEST_LIMIT")) alarm(unsigned(std::atoi(seconds)));
    return true;
}();

}  // namespace hang
