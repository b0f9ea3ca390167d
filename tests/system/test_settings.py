"""The environment variables: an invalid value is an error that names the variable and what is expected."""

from __future__ import annotations

import re

import pytest

from rankwise.system.settings import Settings

SWITCHES = {
    "RANKWISE_ALLOW_PICKLE": "allow_pickle",
    "RANKWISE_CHECK": "check",
    "RANKWISE_DIRECT": "direct",
    "RANKWISE_OVERSUBSCRIBED": "oversubscribed",
    "RANKWISE_TCL_SIMULATE": "tcl_simulate",
}


@pytest.mark.parametrize(("name", "attribute"), SWITCHES.items())
def test_a_switch_is_1_or_0(name: str, attribute: str) -> None:
    assert getattr(Settings({name: "1"}), attribute) is True
    assert getattr(Settings({name: "0"}), attribute) is False
    assert getattr(Settings({name: ""}), attribute) is getattr(Settings({}), attribute)
    for text in ("2", "-1", "yes", "01"):
        with pytest.raises(ValueError, match=rf"^environment variable {name}='{text}': expected 1 or 0$"):
            Settings({name: text})


def test_switches_that_are_not_set() -> None:
    settings = Settings({})
    assert settings.allow_pickle is False
    assert settings.check is None
    assert settings.direct is True
    assert settings.oversubscribed is None
    assert settings.tcl_simulate is False


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("RANKWISE_RANK", "x", "an integer"),
        ("RANKWISE_TIMEOUT", "0", "a number of seconds above 0 and at most 10**9"),
        ("RANKWISE_GRACE", "-1", "a number of seconds above 0 and at most 10**9"),
        ("RANKWISE_ALGORITHM", "all_reduce", "operation=algorithm, separated by commas"),
    ],
)
def test_other_values(name: str, text: str, expected: str) -> None:
    message = f"environment variable {name}={text!r}: expected {expected}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Settings({name: text})
