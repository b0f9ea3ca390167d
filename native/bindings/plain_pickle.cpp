// The pickles of plain data: which streams Python's Unpickler may be given without trust in their sender.
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "plain_pickle.hpp"

#include "once.hpp"

namespace {

constexpr int kMaxDepth = 100;      // deeper tuples could overflow the C stack when they are hashed
constexpr int kMaxBasic = 1 << 16;  // values; a list that contains another twice at each level has no end of them

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

[[noreturn]] void not_plain(const std::string& what) { throw nb::type_error(("its pickle " + what).c_str()); }
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
    Checker(std::string_view stream, size_t buffers, const nb::tuple& constructor)
        : rest_(stream), after_frame_(stream.size()), buffers_(buffers), constructor_(constructor) {
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
        if (module.text() != nb::cast<const char*>(constructor_[0]) ||
            name.text() != nb::cast<const char*>(constructor_[1]))
            not_plain("names " + shown(module) + "." + shown(name));
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
    const nb::tuple& constructor_;
    bool calls_ = false;
    std::vector<Value> stack_, memo_;
    std::vector<size_t> marks_;
};

bool check_plain(const nb::bytes& stream, size_t buffers, const nb::tuple& constructor) {
    return Checker({stream.c_str(), stream.size()}, buffers, constructor).run();
}

// ---- objects for which pickle needs no constructor ----

bool basic(PyObject* object, int depth, int& left);

// Without a GIL another thread may change the container meanwhile, so its values are kept while they are looked at.
bool basic_dict(PyObject* object, int depth, int& left) {
    const nb::ft_object_guard locked{nb::handle(object)};
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);) {
        const nb::object kept_key = nb::borrow(key), kept_value = nb::borrow(value);
        if (!basic(key, depth, left) || !basic(value, depth, left)) return false;
    }
    return true;
}
bool basic_list(PyObject* object, int depth, int& left) {
    const nb::ft_object_guard locked{nb::handle(object)};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
        const nb::object kept = nb::borrow(PyList_GET_ITEM(object, i));
        if (!basic(kept.ptr(), depth, left)) return false;
    }
    return true;
}

// left: how many more values may be looked at.
bool basic(PyObject* object, int depth, int& left) {
    const PyTypeObject* type = Py_TYPE(object);
    if (--left < 0) return false;
    if (object == Py_None || type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
        type == &PyBool_Type || type == &PyBytes_Type)
        return true;
    if (depth == kMaxDepth) return false;
    if (type == &PyDict_Type) return basic_dict(object, depth + 1, left);
    if (type == &PyList_Type) return basic_list(object, depth + 1, left);
    if (type != &PyTuple_Type) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i)
        if (!basic(PyTuple_GET_ITEM(object, i), depth + 1, left)) return false;
    return true;
}

// pickle's functions.
struct Pickle {
    nb::object dumps, loads, protocol = nb::int_(5);
    static const Pickle& get() {
        static Once<Pickle> pickle;
        return pickle.get([] {
            const nb::module_ module = nb::module_::import_("pickle");
            return Pickle{module.attr("dumps"), module.attr("loads")};
        });
    }
};

}  // namespace

bool is_basic(nb::handle object) {
    int left = kMaxBasic;
    return basic(object.ptr(), 0, left);
}

nb::bytes dump(nb::handle object) {
    const Pickle& pickle = Pickle::get();
    PyObject* const args[] = {object.ptr(), pickle.protocol.ptr()};
    PyObject* const result = PyObject_Vectorcall(pickle.dumps.ptr(), args, 2, nullptr);
    if (!result) nb::raise_python_error();
    return nb::steal<nb::bytes>(result);
}

nb::object load(nb::handle stream, bool raises) {
    PyObject* const args[] = {stream.ptr()};
    PyObject* const result = PyObject_Vectorcall(Pickle::get().loads.ptr(), args, 1, nullptr);
    if (result) return nb::steal(result);
    if (raises) nb::raise_python_error();
    PyErr_Clear();
    return not_implemented();
}

nb::object load_allowed(nb::handle stream_, nb::handle constructor) {
    const auto stream = nb::borrow<nb::bytes>(stream_);
    if (constructor.is_none())
        return stream.size() && *stream.c_str() == kPickle ? load(stream, true) : not_implemented();
    try {
        if (check_plain(stream, 0, nb::borrow<nb::tuple>(constructor))) return not_implemented();
    } catch (const std::exception&) {
        return not_implemented();
    }
    return load(stream);
}

void bind_plain_pickle(nb::module_& m) {
    m.def(
        "check_plain", &check_plain, nb::arg("stream"), nb::arg("buffers"), nb::arg("constructor"),
        "Check that a pickle with so many buffers is plain data: that it can only make Python's basic types, and call "
        "one constructor, given as (module, name). Nothing is loaded. Returns whether it calls that. TypeError: it "
        "is not plain data. ValueError: it is invalid.");
    m.def("is_basic", &is_basic, nb::arg("object").none(),
          "Whether an object consists of at most 65,536 None, bool, int, float, str and bytes, in lists, tuples and "
          "dicts.");
    m.def("load_allowed", &load_allowed, nb::arg("stream"), nb::arg("constructor").none(),
          "The object of a pickle that makes only basic types, with no call of the constructor (see check_plain), else "
          "NotImplemented. constructor: None if any pickle may be loaded.");
}
