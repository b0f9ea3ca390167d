"""The child of a stock tclsh: what it answers to requests."""

from __future__ import annotations

import io

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.serve import serve
from rankwise.frontends.tcl.session import Session


def test_words_that_are_no_text_are_an_error() -> None:
    session, answers = Session(COMMANDS), io.BytesIO()
    half = b"\xed\xa0\x80"  # U+D800, as Tcl 8 sends it
    serve(session, io.BytesIO(b"11 3\ntensor_load" + half), answers)
    header, _, text = answers.getvalue().partition(b"\n")
    assert header == b"error %d RANKWISE UnicodeDecodeError" % len(text)
    assert text == rb'Invalid text: "\xed\xa0\x80". Must be Unicode without lone surrogates.'
    session.close()
