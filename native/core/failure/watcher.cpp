#include "failure/watcher.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "failure/stacks.hpp"
#include "failure/termination.hpp"
#include "sync/engine_thread.hpp"
#include "sync/resting_threads.hpp"
#include "sync/waiter.hpp"

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
constexpr useconds_t kUntilMemory = 1000;
constexpr std::chrono::milliseconds kStatusOfDead{100};  // to wait until the parents have reaped them

// What waitpid would report of a process that its parent has not reaped: the last field of its /proc/PID/stat. 0 if it
// has been reaped, and where this process may not know it.
int code_before_reaped(int pidfd, int pid) {
    std::string line;
    if (!pid || !std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), line)) return 0;
    // As long as it has not been reaped, no other process has its pid.
    if (syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) != 0) return 0;
    return std::atoi(line.c_str() + line.rfind(' ') + 1);
}

// The same of one that has been reaped, which newer kernels report even to a process that is not the parent.
int code_after_reaped(int pidfd) {
    PidfdInfo info{};
    info.mask = kInfoExit;
    const bool known = ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) == 0 && (info.mask & kInfoExit);
    return known ? info.exit_code : -1;
}

// How the process ended, in the form of subprocess's returncode.
int32_t exit_status(int pidfd, int pid) {
    int code = code_before_reaped(pidfd, pid);
    if (!code) code = code_after_reaped(pidfd);
    if (code < 0) return kStatusUnknown;
    return (code & 0x7f) ? -(code & 0x7f) : (code >> 8 & 0xff);
}

}  // namespace

Watcher::Watcher(Segment& segment, int rank, Embedding& program)
    : rank_(rank), program_(program), notifications_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      doorbell_(open_doorbell(segment, rank)), watched_(size_t(segment.world_size())), has_doorbell_(doorbell_) {}

Watcher::~Watcher() {
    for (const Peer& peer : added_) close(peer.pidfd);
}

bool Watcher::watch_present(Segment& segment) {
    const std::lock_guard lock(mutex_);
    const int n = segment.world_size();
    bool may_open = true;
    added_.reserve(added_.size() + kWatched);  // if there is no memory, nothing has been opened
    const size_t before = added_.size();
    for (int next = 1, living = 0; next < n && living < kWatched && may_open; ++next) {
        const int r = (rank_ + next) % n;
        const uint32_t processes = segment.record(r).joined.load();
        uint32_t& watched = watched_[size_t(r)];
        if (!processes || segment.ended(r, processes - 1)) continue;
        ++living;
        if (watched >= processes) continue;
        const QualifiedPid peer = segment.record(r).pid.load();
        int fd = processes == 1 ? segment.take_pidfd(r) : -1;
        if (fd < 0) {
            if (!peer.in_own_namespace()) continue;  // the launcher from which it inherited the segment reports its end
            fd = open_pidfd(peer.number);
        }
        if (fd >= 0) {
            added_.push_back({fd, r, peer.in_own_namespace() ? peer.number : 0, processes - 1});
            watched = processes;
        } else if (errno == ESRCH) {
            segment.mark_ended(r, kStatusUnknown, processes - 1);
            --living;
        } else if (errno == EMFILE || errno == ENFILE) {
            may_open = false;
        }  // else the system has no pidfds, or forbids them: the launcher, or the timeout, shows the death
    }
    if (added_.size() > before) notify();
    return may_open;
}

void Watcher::notify() const {
    if (!fork_.is_child()) eventfd_write(notifications_.get(), 1);
}

void Watcher::start(const std::shared_ptr<Segment>& segment) {
    engine_thread([self = shared_from_this(), watched = std::weak_ptr(segment)] { self->watch(watched); }).detach();
}

void Watcher::take_added() {
    const std::lock_guard lock(mutex_);
    peers_.insert(peers_.end(), added_.begin(), added_.end());
    added_.clear();
    eventfd_t count;
    eventfd_read(notifications_.get(), &count);
}

void Watcher::watch(const std::weak_ptr<Segment>& watched) {
    never_runs_the_program();
    for (bool goes_on = true; goes_on;) {
        try {
            goes_on = await_change(watched);
        } catch (const std::bad_alloc&) {  // what was not done is found again
            usleep(kUntilMemory);
        }
    }
    for (const Peer& peer : peers_) close(peer.pidfd);
}

bool Watcher::await_change(const std::weak_ptr<Segment>& watched) {
    std::vector<pollfd> fds{{notifications_.get(), POLLIN, 0}, {has_doorbell_ ? doorbell_.get() : -1, POLLIN, 0}};
    for (const Peer& peer : peers_) fds.push_back({peer.pidfd, POLLIN, 0});
    if (poll(fds.data(), fds.size(), -1) < 0) return errno == EINTR;
    const std::shared_ptr<Segment> segment = watched.lock();
    if (!segment) return false;
    if (fds[1].revents & POLLIN) answer_doorbell(segment, rank_, doorbell_.get(), program_, answering_);
    else if (fds[1].revents) has_doorbell_ = false;  // the program has closed a descriptor that it did not open
    std::vector<Peer> living, dead;
    for (size_t i = 0; i < peers_.size(); ++i) {
        const Peer& peer = peers_[i];
        (fds[i + 2].revents ? dead : living).push_back(peer);
        if (fds[i + 2].revents) segment->mark_ended(peer.rank, kStatusUnknown, peer.process);
    }
    const auto known = [&](const Peer& peer) {
        if (segment->exit_status(peer.rank, peer.process) != kStatusUnknown) return true;
        const int32_t status = exit_status(peer.pidfd, peer.pid);
        if (status != kStatusUnknown) segment->mark_ended(peer.rank, status, peer.process);
        return status != kStatusUnknown;
    };
    Waiter(kStatusOfDead).check_every(std::chrono::milliseconds(2), [&] {  // asks for each, unlike all_of
        return std::ranges::count_if(dead, known) == std::ssize(dead);
    });
    for (const Peer& peer : dead) close(peer.pidfd);
    peers_.swap(living);
    must_replace_ |= !dead.empty();
    // This rank now watches ranks that the dead ones watched; it needs no more descriptors than it has just closed.
    if (must_replace_) watch_present(*segment);
    must_replace_ = false;
    if (fds[0].revents) take_added();
    return true;
}

void watch_peers(const std::shared_ptr<Segment>& segment, int rank, Embedding& program) {
    if (segment->world_size() == 1) return;
    const bool first = !segment->watcher;
    const auto watcher = first ? std::make_shared<Watcher>(*segment, rank, program) : segment->watcher;
    if (!watcher->watch_present(*segment)) {  // the death of an unwatched peer could go unnoticed
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        throw Error("watching other ranks takes up to " + std::to_string(kWatched) +
                    " open files, and this process may have " + std::to_string(limit.rlim_cur) +
                    " in all; `ulimit -n " + std::to_string(limit.rlim_cur + kWatched) +
                    "` before the command raises that");
    }
    if (!first) return;
    watcher->start(segment);
    // When the segment releases it, the thread wakes and ends.
    segment->watcher = {watcher.get(), [watcher](Watcher*) { watcher->notify(); }};
    if (!segment->header().statuses_expected) defer_termination();
}

void end_with(int pid) {
    const int fd = open_pidfd(pid);
    if (fd < 0 && errno == ESRCH) kill(getpid(), SIGKILL);
    if (fd < 0) return;
    engine_thread([fd] {
        never_runs_the_program();
        pollfd launcher{fd, POLLIN, 0};
        while (poll(&launcher, 1, -1) < 0 && errno == EINTR) {
        }
        kill(getpid(), SIGTERM);
        sleep(1);
        kill(getpid(), SIGKILL);
    }).detach();
}

}  // namespace rankwise
