#include "base/text.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/descriptor.hpp"

namespace rankwise {

std::string contents(const std::string& path) {
    std::string text;
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return text;
    char some[4096];
    for (ssize_t size; (size = read(file.get(), some, sizeof some)) > 0 || (size < 0 && errno == EINTR);)
        if (size > 0) text.append(some, size_t(size));
    return text;
}

std::vector<std::string_view> parts(std::string_view text, std::string_view separators) {
    std::vector<std::string_view> found;
    for (size_t end = 0, begin; (begin = text.find_first_not_of(separators, end)) != text.npos;) {
        end = std::min(text.find_first_of(separators, begin), text.size());
        found.push_back(text.substr(begin, end - begin));
    }
    return found;
}

}  // namespace rankwise
