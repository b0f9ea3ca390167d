#include "failure/watchdog.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "failure/errors.hpp"
#include "failure/stacks.hpp"
#include "stream/stream.hpp"

namespace rankwise {

namespace {

int open_pidfd(int pid) { return int(syscall(SYS_pidfd_open, pid, 0)); }

// What PIDFD_GET_INFO of Linux 6.15 and later fills in (linux/pidfd.h).
struct PidfdInfo {
    uint64_t mask, cgroup;
    uint32_t pid, tgid, ppid, ids[8];
    int32_t exit_code;
};
constexpr uint64_t kInfoExit = 1 << 3;

// How the process ended, in the form of subprocess's returncode. Newer kernels report it even to a process that is not
// the parent, once the parent has reaped the process.
int32_t exit_status(int pidfd) {
    PidfdInfo info{};
    info.mask = kInfoExit;
    if (ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) != 0 || !(info.mask & kInfoExit)) return kStatusUnknown;
    const int code = info.exit_code;
    return (code & 0x7f) ? -(code & 0x7f) : (code >> 8 & 0xff);
}

// Ends a watcher thread. The thread and the segment share it; a forked child's copy has no effect.
struct Stop {
    const int fd = eventfd(0, EFD_CLOEXEC);
    const int pid = getpid();
    ~Stop() { close(fd); }
    void signal() const {
        if (getpid() == pid) eventfd_write(fd, 1);
    }
};

// fds[r] is the pidfd of rank r, or -1 if it is not watched (any more). The last two are the doorbell, through which other
// ranks request this rank's stacks, and the one of `stop`.
void watch(std::vector<pollfd> fds, int rank, std::weak_ptr<Segment> watched, std::shared_ptr<Stop> /*keeps its fd open*/) {
    const size_t n = fds.size() - 2;
    size_t alive = 0;
    for (size_t r = 0; r < n; ++r) alive += fds[r].fd >= 0;
    while (alive > 0) {
        if (poll(fds.data(), fds.size(), -1) < 0) {
            if (errno == EINTR) continue;
            break;
        }
        const std::shared_ptr<Segment> segment = watched.lock();
        if (!segment) break;
        if (fds[n].revents & POLLIN) answer_doorbell(segment, rank, fds[n].fd);
        else if (fds[n].revents) fds[n].fd = -1;  // the program has closed a descriptor that it did not open
        for (size_t r = 0; r < n; ++r) {
            if (fds[r].fd < 0 || !fds[r].revents) continue;
            segment->mark_exited(int(r), kStatusUnknown);
            for (int tries = 0; tries < 50 && segment->record(int(r)).exit_status.load() == kStatusUnknown; ++tries) {
                if (const int32_t status = exit_status(fds[r].fd); status != kStatusUnknown) segment->mark_exited(int(r), status);
                else usleep(2000);
            }
            close(fds[r].fd);
            fds[r].fd = -1;
            --alive;
        }
    }
    for (size_t r = 0; r <= n; ++r)
        if (fds[r].fd >= 0) close(fds[r].fd);
}

}  // namespace

void watch_peers(std::shared_ptr<Segment> segment, int rank) {
    const int n = segment->world_size();
    if (n == 1) return;
    std::vector<pollfd> fds(static_cast<size_t>(n), pollfd{-1, POLLIN, 0});
    for (int r = 0; r < n; ++r) {
        if (r == rank) continue;
        fds[size_t(r)].fd = open_pidfd(segment->record(r).pid.load());
        if (fds[size_t(r)].fd >= 0) continue;
        if (errno == ESRCH) segment->mark_exited(r, kStatusUnknown);
        if (errno == EMFILE || errno == ENFILE) {  // the death of an unwatched peer would go unnoticed
            for (const pollfd& opened : fds)
                if (opened.fd >= 0) close(opened.fd);
            rlimit limit{};
            getrlimit(RLIMIT_NOFILE, &limit);
            throw Error("watching the other " + std::to_string(n - 1) + " ranks takes one open file each, and this process may have " +
                        std::to_string(limit.rlim_cur) + " in all; `ulimit -n " + std::to_string(limit.rlim_cur + rlim_t(n)) +
                        "` before the command raises that");
        }
    }
    fds.push_back({open_doorbell(*segment, rank), POLLIN, 0});
    auto stop = std::make_shared<Stop>();
    fds.push_back({stop->fd, POLLIN, 0});
    segment->before_unmap([stop] { stop->signal(); });
    engine_thread([fds = std::move(fds), rank, watched = std::weak_ptr(segment), stop] { watch(fds, rank, watched, stop); }).detach();
}

void end_with(int pid) {
    const int fd = open_pidfd(pid);
    if (fd < 0 && errno == ESRCH) kill(getpid(), SIGKILL);
    if (fd < 0) return;
    engine_thread([fd] {
        pollfd launcher{fd, POLLIN, 0};
        while (poll(&launcher, 1, -1) < 0 && errno == EINTR) {}
        kill(getpid(), SIGTERM);
        sleep(1);
        kill(getpid(), SIGKILL);
    }).detach();
}

}  // namespace rankwise
