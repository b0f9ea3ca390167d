// Operations in progress as Python sees them, and how a call on plain arrays runs or is only started.
#pragma once
#include "embedding.hpp"
#include "late_result.hpp"
#include "started.hpp"

// A Python function that runs once, as a task of a stream. Its result is what the function returns.
class PythonCall : public LateResult {
public:
    explicit PythonCall(nb::callable function) : function_(std::move(function)) {}
    // Throws Raised.
    void run();

private:
    Kept function_;
};

// An operation on a stream: a Work. If Python loses it while it is pending, it goes on, and its memory stays alive.
class WorkHandle {
public:
    // memory: owns what the engine uses. result: what `wait` returns; or late, if the operation makes it.
    WorkHandle(std::shared_ptr<rankwise::Task> task, nb::object memory, nb::object result = nb::none(),
               std::shared_ptr<LateResult> late = nullptr, nb::object group = {})
        : group(std::move(group)), task_(std::move(task)), memory_(std::move(memory)), result_(std::move(result)),
          late_(std::move(late)) {}
    // A call on a stream: submit(function) queues a function, and returns its Task.
    template <class Submit> static WorkHandle of_call(nb::callable function, const Submit& submit) {
        const auto call = std::make_shared<PythonCall>(std::move(function));
        WorkHandle made(submit([call] { call->run(); }), nb::none());
        made.late_ = call;
        return made;
    }
    WorkHandle(WorkHandle&&) = default;
    ~WorkHandle();
    rankwise::Task* operator->() const { return task_.get(); }

    nb::object wait(nb::handle timeout);
    // Waits at most so long, without raising the operation's error.
    void await_end(double timeout);
    bool done();
    std::string repr() const;

    nb::object group;  // which is not closed as long as somebody has this, whether or not it is used otherwise

private:
    void release();
    std::shared_ptr<rankwise::Task> task_;
    nb::object memory_, result_;
    std::shared_ptr<LateResult> late_;  // which makes the result
};

std::vector<WorkHandle> works_of(std::vector<std::shared_ptr<rankwise::Task>> tasks);

// While it lives, the calling thread's next call on plain arrays is only started.
class Starting {
public:
    Starting() : place(python_place()), outer_(std::exchange(here, this)) {}
    Starting(const Starting&) = delete;
    ~Starting() { here = outer_; }
    // The Work of the call, which has been made; it keeps these objects, some of which may be invalid.
    template <class... A> WorkHandle work(nb::handle group, const A&... kept) {
        const auto item = [](nb::handle each) { return each.is_valid() ? each : nb::handle(Py_None); };
        return {std::move(task), nb::make_tuple(item(place.second), item(kept)...), std::move(result), std::move(late),
                nb::borrow(group)};
    }
    void set_result(nb::handle object) { result = nb::borrow(object); }
    void set_result(std::shared_ptr<LateResult> object) { late = std::move(object); }

    [[gnu::tls_model("initial-exec")]] static thread_local constinit Starting* here;
    const std::pair<rankwise::CodePlace, nb::object> place;
    std::shared_ptr<rankwise::Task> task;
    nb::object result = nb::none();
    std::shared_ptr<LateResult> late;

private:
    Starting* const outer_;
};

// Makes a call on plain arrays that moves so many bytes: call(options). result: what its Work returns if it is only
// started, an array or a LateResult. `call` holds copies, and the description is that of an array that lives until the
// operation has ended.
template <class Result, class Call>
void run(rankwise::Comm& c, size_t bytes, const rankwise::Description& description, const Result& result, Call&& call) {
    if (Starting* const starting = std::exchange(Starting::here, nullptr)) {
        starting->set_result(result);
        starting->task = c.start(
            [call, description](const rankwise::CallOptions& given) mutable {
                call(rankwise::CallOptions{description, given.program_lock, given.started});
            },
            starting->place.first);
        return;
    }
    ReleaseGilToWait released(bytes);
    call(released.options(description));
}

// A shortcut that only starts its operation: start(group, ...) returns the Work, or None if nothing was done. The Work
// keeps the arguments, the result and the group.
template <class Done, class... A> auto starter(Done (*shortcut)(rankwise::Comm&, A...)) {
    return [shortcut](rankwise::Comm& c, nb::handle group, A... args) -> std::optional<WorkHandle> {
        Starting starting;
        const Done done = shortcut(c, args...);
        if (!done) return std::nullopt;
        if constexpr (std::is_same_v<Done, bool>) return starting.work(group, args...);
        else return starting.work(group, done, args...);
    };
}
