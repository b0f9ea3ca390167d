#include "site.hpp"

#include "rankwise.h"

namespace rankwise::capi {

thread_local constinit Site site;

std::string Site::text() const {
    if (!file) return "";
    std::string text = std::string(file) + ":" + std::to_string(line);
    return function && *function ? text + " (" + function + ")" : text;
}

std::string call_site() { return site.text(); }

}  // namespace rankwise::capi

void rankwise_at(const char* file, int line, const char* function) { rankwise::capi::site = {file, line, function}; }
