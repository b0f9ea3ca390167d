"""Checks of the arguments that limit how long an operation, or one wait for it, may take."""

from __future__ import annotations

from numbers import Real

from rankwise.contract.errors import shown

LONGEST_TIMEOUT = 1e9
"""Seconds, about 31 years. No wait is endless, and the clocks of all engines can add this much to the present time."""

TIMEOUT = "a number of seconds above 0 and at most 10**9"
"""What messages say was expected."""


def is_timeout(seconds: float) -> bool:
    """Whether an operation may be limited to so many seconds."""
    return 0 < seconds <= LONGEST_TIMEOUT


def check_timeout(seconds: float) -> float:
    """The limit of operations, as a float.

    Raises TypeError if it is not a number, and ValueError if it is no limit, such as 0 or infinity.
    """
    if not _is_number(seconds):
        raise TypeError(f"timeout={seconds!r}: expected a number of seconds, got {type(seconds).__name__}")
    if not is_timeout(seconds):
        raise ValueError(f"timeout={shown(seconds)}: expected {TIMEOUT}")
    return float(seconds)


def check_wait(timeout: float, optional: bool = True) -> float:
    """The limit of one wait (not None; 0 is allowed), as a float that every engine's clock can add to the time.

    optional: whether the caller takes None for no limit, for the error.
    """
    if type(timeout) is float and 0 <= timeout <= LONGEST_TIMEOUT:
        return timeout
    number = _is_number(timeout)
    if number and timeout >= 0:
        return float(min(timeout, LONGEST_TIMEOUT))
    error = ValueError if number else TypeError
    raise error(f"timeout: {shown(timeout)} given, expected seconds, at least 0{', or None' * optional}")


def _is_number(value: object) -> bool:
    return isinstance(value, (float, Real)) and not isinstance(value, bool)  # a Real is recognised more slowly
