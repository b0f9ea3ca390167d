// Notices at once when the process of a peer, whose groups then fail, or of the launcher ends.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "memory/segment.hpp"
#include "sync/forks.hpp"

namespace rankwise {

// This process's watcher of other ranks of a segment: a thread that sleeps until one of their processes ends. Each rank
// watches the next kWatched ranks that are alive, and marks a death in the segment, where all see it; so the
// descriptors that it needs do not grow with the number of ranks, and a death goes unnoticed only while all that watch
// it are stopped.
class Watcher : public std::enable_shared_from_this<Watcher> {
public:
    Watcher(Segment& segment, int rank, Embedding& program);
    ~Watcher();
    Watcher(const Watcher&) = delete;
    // Watch the present processes of the next kWatched ranks that are alive, by their pids or, in other PID namespaces,
    // by the pidfds that the segment was given. Returns false if this process may open no further file.
    bool watch_present(Segment& segment);
    void start(const std::shared_ptr<Segment>& segment);
    // Wake the thread. It ends once the segment is gone, and does not keep the segment alive.
    void notify() const;

private:
    struct Peer {
        int pidfd, rank;
        int pid;  // 0 in another PID namespace
        uint32_t process;
    };
    void watch(const std::weak_ptr<Segment>& watched);
    // One turn of the thread. Returns false once the segment is gone.
    bool await_change(const std::weak_ptr<Segment>& watched);
    void take_added();
    const int rank_;
    Embedding& program_;  // this rank's
    const ForkMark fork_;
    const Descriptor notifications_;  // eventfd: there are further processes to watch, or the segment is gone
    const Descriptor doorbell_;       // through which other ranks request this rank's stacks (stacks.hpp)
    const std::shared_ptr<std::atomic<bool>> answering_ = std::make_shared<std::atomic<bool>>(false);
    std::mutex mutex_;
    std::vector<Peer> added_;        // not yet taken by the thread
    std::vector<uint32_t> watched_;  // for each rank, the number of the latest watched process + 1
    // Of the thread alone.
    std::vector<Peer> peers_;
    bool has_doorbell_;
    bool must_replace_ = false;  // a watched rank has ended, and no other one is watched in its place yet
};

// Watch other ranks of `segment`, until this process unmaps it. Called again after ranks have been replaced. Throws
// Error if this process may not open the files that it takes. program: this rank's.
void watch_peers(const std::shared_ptr<Segment>& segment, int rank, Embedding& program);
// End this process when the process `pid` ends: with SIGTERM, and a second later with SIGKILL.
void end_with(int pid);

}  // namespace rankwise
