// The mode of floating-point arithmetic. Only isa.cpp includes this file, inside its namespaces.

// What a program may have changed for its thread: how numbers are rounded, and whether subnormal ones become 0.
#if defined(__x86_64__)
using Mode = unsigned;
constexpr Mode kOfPrograms = 0xe040;
inline Mode mode() { return __builtin_ia32_stmxcsr(); }
inline void set_mode(Mode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
using Mode = uint64_t;
constexpr Mode kOfPrograms = 0x1c80000;
inline Mode mode() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
inline void set_mode(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
using Mode = int;
constexpr Mode kOfPrograms = 0;
inline Mode mode() { return 0; }
inline void set_mode(Mode) {}
#endif

// While it lives, this thread rounds to nearest and keeps subnormal numbers, so that all ranks get the same bits.
class UsualArithmetic {
public:
    UsualArithmetic() : before_(mode()) {
        if (before_ & kOfPrograms) set_mode(before_ & ~kOfPrograms);
    }
    UsualArithmetic(const UsualArithmetic&) = delete;
    ~UsualArithmetic() {
        if (before_ & kOfPrograms) set_mode(before_);
    }

private:
    const Mode before_;
};
