// Any bytes are a pickle that another rank may send: the check of whether it is plain data reads nothing else. The
// first byte says how many buffers come with it. tests/fuzz/targets.py compares what is accepted with what Python
// loads.
#include <string>

#include "base/errors.hpp"
#include "bindings/pickle_check.hpp"
#include "input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input input(data, size);
    const size_t buffers = input.below(4);
    const auto rest = input.take_bytes(size);
    const std::string stream(rest.begin(), rest.end());  // of its exact length
    try {
        check_plain(stream, buffers, "rankwise.group.plain_types", "make");
    } catch (const NotPlain&) {
    } catch (const rankwise::BadArgument&) {
    }
    return 0;
}
