"""How stacks are formatted. tests/backends/test_failures.py tests that they are requested."""

from __future__ import annotations

import threading

from rankwise.contract.stacks import all_threads, in_words


def test_equal_stacks_appear_once() -> None:
    stack = '  File "a.py", line 1, in f\n    wait()\n'
    assert in_words({1: stack, 2: "its process is stopped", 3: stack, 4: stack}) == (
        "\n  Python stack of ranks 1, 3, 4, innermost last:"
        '\n    File "a.py", line 1, in f'
        "\n      wait()"
        "\n  Python stack of rank 2: its process is stopped"
    )
    assert in_words({}) == ""


def test_the_main_thread_comes_last() -> None:
    told: list[str] = []
    asking = threading.Thread(target=lambda: told.append(all_threads()))
    over = threading.Event()
    other = threading.Thread(target=over.wait, name="waits")
    other.start()
    asking.start()
    asking.join()
    over.set()
    other.join()
    assert "  thread waits:\n" in told[0]
    assert told[0].rindex("  thread MainThread:\n") > told[0].index("  thread waits:\n")
    assert "in all_threads" not in told[0], "the asking thread's own"
