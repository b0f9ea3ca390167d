// Text that is read: small files of the system, and its lines and words.
//
// No iostreams: where libstdc++ is linked statically into a library beside the shared one, their locales can differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rankwise {

// What a small file holds, such as one of /proc; empty if it cannot be read.
std::string contents(const std::string& path);

// The parts between separators, without empty ones.
std::vector<std::string_view> parts(std::string_view text, std::string_view separators = " \t\n");

}  // namespace rankwise
