"""Calls of the commands in one process, without Tcl."""

from __future__ import annotations

from rankwise.frontends.tcl.session import Session


def call(session: Session, name: str, *words: object) -> str:
    """The result of a call that succeeds."""
    code, text, why = session.answer(name, [str(word) for word in words])
    assert (code, why) == ("ok", "NONE"), text
    return text


def error(session: Session, name: str, *words: object) -> str:
    """The message of a call that fails, and makes no tensor."""
    tensors = len(session.handles.tensors)
    code, text, why = session.answer(name, [str(word) for word in words])
    assert (code, why) == ("error", "RANKWISE ValueError"), text
    assert "\n" not in text
    assert len(session.handles.tensors) == tensors
    return text
