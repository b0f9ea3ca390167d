// The result of a call that learns only while it runs how large that is.
#pragma once
#include <optional>

#include "base/aligned_memory.hpp"
#include "kept.hpp"

class LateResult {
public:
    // Calls make() with the GIL, in whatever thread the call runs. It sets the result, and returns the address of
    // memory for this many bytes. If it raises an exception, the call goes on with other memory, because the other
    // ranks rely on this one, and `check` throws the exception.
    template <class Make> uint8_t* room(size_t bytes, const Make& make) {
        uint8_t* memory = nullptr;
        acquiring_gil([&] {
            const HoldGil hold;
            try {
                memory = make();
            } catch (nb::python_error& e) {
                error_.emplace(e);
            }
        });
        if (!error_) return memory;
        unused_ = rankwise::Memory(bytes);
        return unused_.data();
    }
    void set(nb::object result) { result_.emplace(std::move(result)); }
    // Throws Raised.
    void check() const {
        if (error_) throw *error_;
    }
    // The result, once. The caller holds the GIL.
    nb::object take() { return result_ ? result_->take() : nb::none(); }

private:
    std::optional<Kept> result_;
    std::optional<Raised> error_;
    rankwise::Memory unused_;
};
