#include "pickle_check.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/errors.hpp"

namespace {

constexpr int kMaxDepth = 100;  // deeper tuples could overflow the C stack when they are hashed

// ---- the opcodes of plain data ----

enum class Does : uint8_t {
    kRefuse,
    kProtocol,
    kFrame,
    kStop,
    kMark,
    kPop,
    kPopMark,
    kPush,
    kTuple,
    kAdd,
    kMemoize,
    kGet,
    kGlobal,
    kReduce,
    kNextBuffer,
};
enum class Kind : uint8_t { kOther, kText, kList, kDict, kSet, kConstructor };
constexpr int kToMark = -1;

// An opcode, and what follows it: the bytes of a number; if `sized`, it is the length of the data after it.
struct Opcode {
    uint8_t code = 0;
    Does does = Does::kRefuse;
    int number = 0;
    bool sized = false;
    Kind kind = Kind::kOther;  // of the value that is pushed, or to which items are added
    int items = 0;             // how many values go into a tuple, or are added
};

constexpr Opcode kPlainOpcodes[] = {
    {0x80, Does::kProtocol, 1},
    {0x95, Does::kFrame, 8},
    {'.', Does::kStop},
    {'(', Does::kMark},
    {'0', Does::kPop},
    {'1', Does::kPopMark},
    {'N', Does::kPush},                                     // None
    {0x88, Does::kPush},                                    // True
    {0x89, Does::kPush},                                    // False
    {'K', Does::kPush, 1},                                  // BININT1
    {'M', Does::kPush, 2},                                  // BININT2
    {'J', Does::kPush, 4},                                  // BININT
    {'G', Does::kPush, 8},                                  // BINFLOAT
    {0x8a, Does::kPush, 1, true},                           // LONG1
    {0x8b, Does::kPush, 4, true},                           // LONG4
    {'C', Does::kPush, 1, true},                            // SHORT_BINBYTES
    {'B', Does::kPush, 4, true},                            // BINBYTES
    {0x8e, Does::kPush, 8, true},                           // BINBYTES8
    {0x96, Does::kPush, 8, true},                           // BYTEARRAY8
    {0x8c, Does::kPush, 1, true, Kind::kText},              // SHORT_BINUNICODE
    {'X', Does::kPush, 4, true, Kind::kText},               // BINUNICODE
    {0x8d, Does::kPush, 8, true, Kind::kText},              // BINUNICODE8
    {']', Does::kPush, 0, false, Kind::kList},              // EMPTY_LIST
    {'}', Does::kPush, 0, false, Kind::kDict},              // EMPTY_DICT
    {0x8f, Does::kPush, 0, false, Kind::kSet},              // EMPTY_SET
    {')', Does::kTuple, 0, false, Kind::kOther, 0},         // EMPTY_TUPLE
    {0x85, Does::kTuple, 0, false, Kind::kOther, 1},        // TUPLE1
    {0x86, Does::kTuple, 0, false, Kind::kOther, 2},        // TUPLE2
    {0x87, Does::kTuple, 0, false, Kind::kOther, 3},        // TUPLE3
    {'t', Does::kTuple, 0, false, Kind::kOther, kToMark},   // TUPLE
    {0x91, Does::kTuple, 0, false, Kind::kOther, kToMark},  // FROZENSET
    {'a', Does::kAdd, 0, false, Kind::kList, 1},            // APPEND
    {'e', Does::kAdd, 0, false, Kind::kList, kToMark},      // APPENDS
    {'s', Does::kAdd, 0, false, Kind::kDict, 2},            // SETITEM
    {'u', Does::kAdd, 0, false, Kind::kDict, kToMark},      // SETITEMS
    {0x90, Does::kAdd, 0, false, Kind::kSet, kToMark},      // ADDITEMS
    {0x94, Does::kMemoize},
    {'h', Does::kGet, 1},   // BINGET
    {'j', Does::kGet, 4},   // LONG_BINGET
    {0x93, Does::kGlobal},  // STACK_GLOBAL
    {'R', Does::kReduce},
    {0x97, Does::kNextBuffer},
};
// By code.
constexpr auto kOpcodes = [] {
    std::array<Opcode, 256> all{};
    for (const Opcode& each : kPlainOpcodes) all[each.code] = each;
    return all;
}();

// ---- the Unpickler's stack, with what matters of each value ----

[[noreturn]] void not_plain(const std::string& what) { throw NotPlain("its pickle " + what); }
[[noreturn]] void invalid(const std::string& why) { throw rankwise::BadArgument("its pickle " + why); }

uint64_t little_endian(std::string_view bytes) {
    uint64_t number = 0;
    for (size_t i = bytes.size(); i--;) number = number << 8 | uint8_t(bytes[i]);
    return number;
}

class Value {
public:
    Value() = default;
    Value(Kind k, int nested, std::string_view name = {})
        : kind(k), depth(uint8_t(nested)), length_(uint8_t(std::min<size_t>(name.size(), UINT8_MAX))),
          text_(name.data()) {}
    std::string_view text() const { return {text_, length_}; }  // its beginning, which is enough for a name

    Kind kind = Kind::kOther;
    uint8_t depth = 0;  // exact for what cannot be changed; a list may get more items after it was put into another

private:
    uint8_t length_ = 0;
    const char* text_ = nullptr;
};
static_assert(kMaxDepth < UINT8_MAX && sizeof(Value) == 16);

// A name for a message: its beginning, in ASCII.
std::string shown(const Value& name) {
    std::string all(name.text().substr(0, 100));
    std::replace_if(all.begin(), all.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return all;
}

class Checker {
public:
    Checker(std::string_view stream, size_t buffers, std::string_view module, std::string_view name)
        : rest_(stream), after_frame_(stream.size()), buffers_(buffers), module_(module), name_(name) {
        stack_.reserve(32);
        memo_.reserve(32);
    }

    // Whether the stream calls the constructor.
    bool run() {
        while (step()) {
        }
        if (stack_.size() != 1 || !marks_.empty()) invalid("does not make exactly one value");
        depth_of(1);
        if (!rest_.empty()) invalid("goes on after its end");
        if (buffers_) invalid("comes with more buffers than it uses");
        return calls_;
    }

private:
    // Whether another opcode follows.
    bool step() {
        const bool in_frame = rest_.size() > after_frame_;
        const auto code = uint8_t(take(1)[0]);
        const Opcode& opcode = kOpcodes[code];
        const uint64_t number = opcode.number ? little_endian(take(size_t(opcode.number))) : 0;
        const std::string_view data = opcode.sized ? take(number) : std::string_view();
        // The Unpickler would skip what is left of the frame.
        if (in_frame && rest_.size() < after_frame_) invalid("has an opcode that crosses the end of a frame");
        switch (opcode.does) {
        case Does::kRefuse: not_plain("has the opcode " + std::to_string(code));
        case Does::kProtocol:
            if (number != 5) not_plain("is of protocol " + std::to_string(number));
            break;
        case Does::kFrame:
            if (rest_.size() > after_frame_) invalid("has a frame within a frame");
            if (number > rest_.size()) invalid("ends early");
            after_frame_ = rest_.size() - number;
            break;
        case Does::kStop: return false;
        case Does::kMark: marks_.push_back(stack_.size()); break;
        case Does::kPop:
            if (!marks_.empty() && marks_.back() == stack_.size()) marks_.pop_back();
            else drop(1);
            break;
        case Does::kPopMark: drop(to_mark()); break;
        case Does::kPush: stack_.emplace_back(opcode.kind, opcode.kind >= Kind::kList, data); break;
        case Does::kTuple: tuple(count(opcode)); break;
        case Does::kAdd: add(count(opcode), opcode.kind); break;
        case Does::kMemoize: memo_.push_back(top()); break;
        case Does::kGet:
            if (number >= memo_.size()) invalid("refers to a value that does not exist");
            push(memo_[number]);
            break;
        case Does::kGlobal: global(); break;
        case Does::kReduce: reduce(); break;
        case Does::kNextBuffer:
            if (!buffers_) invalid("comes with fewer buffers than it uses");
            --buffers_;
            push({});
            break;
        }
        return true;
    }

    void tuple(size_t items) {
        const int depth = limited(1 + depth_of(items));
        drop(items);
        push({Kind::kOther, depth});
    }

    void add(size_t items, Kind to) {
        const int depth = 1 + depth_of(items);
        drop(items);
        if (top().kind != to) invalid("adds items to a value that cannot have them");
        top().depth = uint8_t(limited(std::max<int>(top().depth, depth)));
    }

    void global() {
        const Value name = text(), module = text();
        if (module.text() != module_ || name.text() != name_) not_plain("names " + shown(module) + "." + shown(name));
        push({Kind::kConstructor, 0});
    }

    void reduce() {
        const int depth = depth_of(1);
        drop(1);
        if (top().kind != Kind::kConstructor) invalid("calls something other than the constructor");
        drop(1);
        push({Kind::kOther, depth});
        calls_ = true;
    }

    std::string_view take(size_t bytes) {
        if (bytes > rest_.size()) invalid("ends early");
        const std::string_view taken(rest_.data(), bytes);
        rest_.remove_prefix(bytes);
        return taken;
    }

    // How many values there are above the last mark, which is removed.
    size_t to_mark() {
        if (marks_.empty()) invalid("lacks a mark");
        const size_t items = stack_.size() - marks_.back();
        marks_.pop_back();
        return items;
    }
    size_t count(const Opcode& opcode) { return opcode.items == kToMark ? to_mark() : size_t(opcode.items); }

    // The last values; those below a mark are out of reach.
    std::span<Value> last(size_t items) {
        if (items > stack_.size() - (marks_.empty() ? 0 : marks_.back())) invalid("lacks a value");
        return std::span(stack_).last(items);
    }
    Value& top() { return last(1)[0]; }
    Value text() {
        const Value value = top();
        if (value.kind != Kind::kText) invalid("has a name that is not text");
        drop(1);
        return value;
    }
    void drop(size_t items) { stack_.resize(stack_.size() - last(items).size()); }

    // The depth of the deepest of the last values, which must be data.
    int depth_of(size_t items) {
        int deepest = 0;
        for (const Value& value : last(items)) {
            if (value.kind == Kind::kConstructor) invalid("has a constructor that it does not call");
            deepest = std::max<int>(deepest, value.depth);
        }
        return deepest;
    }

    static int limited(int depth) {
        if (depth > kMaxDepth)
            throw rankwise::BadArgument("it is nested deeper than " + std::to_string(kMaxDepth) + " levels");
        return depth;
    }

    void push(const Value& value) { stack_.push_back(value); }

    std::string_view rest_;
    size_t after_frame_;  // how many bytes follow the present frame
    size_t buffers_;
    const std::string_view module_, name_;  // of the constructor
    bool calls_ = false;
    std::vector<Value> stack_, memo_;
    std::vector<size_t> marks_;
};

}  // namespace

bool check_plain(std::string_view stream, size_t buffers, std::string_view module, std::string_view name) {
    return Checker(stream, buffers, module, name).run();
}
