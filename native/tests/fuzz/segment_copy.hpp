// Copies of a segment's file, in which anything may have been overwritten.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "input.hpp"
#include "memory/segment.hpp"
#include "memory/trace_entry.hpp"

namespace rankwise {

// A segment whose file has at most so many bytes.
inline std::shared_ptr<Segment> small_segment(int ranks, size_t bytes) {
    rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limited{bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limited);
    auto segment = Segment::create(ranks);
    setrlimit(RLIMIT_FSIZE, &before);
    return segment;
}

// What is mapped while it lives, and has this size, most likely lies between memory that nobody can use.
class Guards {
public:
    explicit Guards(size_t bytes) : bytes_(round_up(bytes, page_bytes())) {
        void* const found =
            mmap(nullptr, 2 * kGuard + bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) std::abort();
        before_ = static_cast<uint8_t*>(found);
        if (bytes_) munmap(before_ + kGuard, bytes_);
    }
    Guards(const Guards&) = delete;
    ~Guards() {
        munmap(before_, kGuard);
        munmap(before_ + kGuard + bytes_, kGuard);
    }

private:
    static constexpr size_t kGuard = 64 * MiB;
    size_t bytes_;
    uint8_t* before_;
};

class SegmentCopy {
public:
    struct Part {
        size_t begin, end;
    };
    // parts: of the segment's file, in their order; the rest holds zeros.
    SegmentCopy(const Segment& segment, const std::vector<Part>& parts)
        : parts_(parts), bytes_(segment.header().bytes) {
        for (const Part& part : parts) original_.emplace_back(segment.at(part.begin), segment.at(part.end));
    }
    void reset() { content_ = original_; }
    SegmentHeader& header() { return *reinterpret_cast<SegmentHeader*>(content_[0].data()); }
    size_t whole() const { return bytes_; }
    // Some bytes of a part.
    std::span<uint8_t> stretch(size_t from, size_t bytes) {
        for (size_t i = 0; i < parts_.size(); ++i)
            if (from >= parts_[i].begin && from + bytes <= parts_[i].end)
                return std::span(content_[i]).subspan(from - parts_[i].begin, bytes);
        std::abort();
    }
    // Of so many bytes, and sealed as a segment is. The caller closes the descriptor.
    int file(size_t bytes) const {
        const int fd = memfd_create("rankwise", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0) std::abort();
        for (size_t i = 0; i < parts_.size(); ++i)
            if (pwrite(fd, content_[i].data(), content_[i].size(), off_t(parts_[i].begin)) < 0) std::abort();
        if (ftruncate(fd, off_t(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
            std::abort();
        return fd;
    }

private:
    std::vector<Part> parts_;
    size_t bytes_;
    std::vector<std::vector<uint8_t>> original_, content_;
};

}  // namespace rankwise
