// What a C program's rank reports of its errors, whose texts may hold any bytes, is JSON that its launcher can read.
#include "capi/report.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/descriptor.hpp"
#include "input.hpp"

namespace {

// Reads JSON that has no fractions, escapes of more than one letter only for control characters, and little else.
class Reader {
public:
    explicit Reader(std::string_view text) : rest_(text) {}
    bool ended() const { return rest_.empty(); }
    // Whether a value begins here, which is then read. text: if it is one.
    bool value(std::string* text = nullptr) {
        if (rest_.starts_with("null")) return rest_.remove_prefix(4), true;
        if (rest_.starts_with('"')) return string(text);
        if (rest_.starts_with('{')) return list('}', [this] { return string(nullptr) && next(": ") && value(); });
        if (rest_.starts_with('[')) return list(']', [this] { return value(); });
        const size_t digits = rest_.find_first_not_of("-0123456789");
        if (digits == 0) return false;
        rest_.remove_prefix(std::min(digits, rest_.size()));
        return true;
    }
    // Whether a list begins here, whose items `item` reads.
    template <class Item> bool list(char end, const Item& item) {
        rest_.remove_prefix(1);
        if (next({&end, 1})) return true;
        do
            if (!item()) return false;
        while (next(", "));
        return next({&end, 1});
    }

private:
    bool next(std::string_view expected) {
        if (!rest_.starts_with(expected)) return false;
        rest_.remove_prefix(expected.size());
        return true;
    }
    bool string(std::string* text) {
        if (!next("\"")) return false;
        if (text) text->clear();
        while (!rest_.empty()) {
            char c = rest_[0];
            rest_.remove_prefix(1);
            if (c == '"') return true;
            if (static_cast<unsigned char>(c) < ' ') return false;
            if (c == '\\') {
                if (rest_.empty()) return false;
                c = rest_[0];
                rest_.remove_prefix(1);
                if (c == 'u') {
                    c = char(std::strtoul(std::string(rest_.substr(0, 4)).c_str(), nullptr, 16));
                    if (!next("00") || rest_.size() < 2) return false;
                    rest_.remove_prefix(2);
                } else if (c != '"' && c != '\\') {
                    return false;
                }
            }
            if (text) *text += c;
        }
        return false;
    }

    std::string_view rest_;
};

// A list of failures, each a text, which is JSON in turn, or null.
bool readable(const std::string& report) {
    Reader reader(report);
    const auto failure = [&] {
        std::string text = "{}";
        if (!reader.value(&text)) return false;
        Reader inner(text);
        return inner.value() && inner.ended();
    };
    return reader.list(']', failure) && reader.ended();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace rankwise;
    static const Descriptor memory(memfd_create("report", 0));
    capi::report_to(memory.get(), 0);
    Input input(data, size);
    capi::Failure failure;
    failure.message = input.text();
    failure.sequence = input.take<int64_t>();
    failure.to_blame = int(input.below(3)) - 1;
    while (!input.ended()) failure.ranks.emplace_back(input.take<int32_t>(), input.text());
    capi::report_failure(failure);
    if (input.below(2)) capi::report_end(failure);
    std::string line(1 << 20, '\0');
    const ssize_t bytes = pread(memory.get(), line.data(), line.size(), 0);
    line.resize(std::string_view(line.data(), size_t(bytes)).find('\0'));
    if (!readable(line)) std::abort();
    return 0;
}
