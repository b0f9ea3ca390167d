"""Merging the output of ranks, without processes."""

from __future__ import annotations

import io

import pytest

from rankwise.launch.output import LONGEST_LINE, Relay


class Screen(io.TextIOWrapper):
    """A text stream that says it is a terminal."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes)

    def isatty(self) -> bool:
        return True


class File(Screen):
    def isatty(self) -> bool:
        return False


def test_lines_are_passed_when_they_are_complete() -> None:
    file = File()
    relay = Relay(2, file, None)
    (first, _), (second, _) = relay.add(0), relay.add(1)
    relay.feed(first, b"one ")
    relay.feed(second, b"a\nb")
    relay.feed(first, b"two\nthree")
    assert not relay.hides()
    assert file.bytes.getvalue() == b"a\none two\n"
    relay.end(first)
    relay.end(second)
    assert file.bytes.getvalue() == b"a\none two\nthree\nb"


def test_tags_stand_where_lines_begin() -> None:
    file = File()
    relay = Relay(1, file, None, tag=True)
    stream, _ = relay.add(7)
    for piece in (b"a\n\nb", b"c\r\n", b"1%\r", b"2%", b"\r", b"\nend"):
        relay.feed(stream, piece)
    relay.end(stream)
    assert file.bytes.getvalue() == b"[7] a\n[7] \n[7] bc\r\n[7] 1%\r[7] 2%\r\n[7] end"


def test_one_rank_writes_as_if_alone() -> None:
    file = File()
    relay = Relay(1, file, None)
    stream, _ = relay.add(0)
    relay.feed(stream, b"Name? ")
    assert file.bytes.getvalue() == b"Name? "


def test_an_endless_line_comes_in_pieces() -> None:
    file = File()
    relay = Relay(2, file, None)
    (stream, _), _ = relay.add(0), relay.add(1)
    piece = bytes(LONGEST_LINE // 4 + 1)
    for _ in range(8):
        relay.feed(stream, piece)
    assert file.bytes.getvalue() == piece * 8


def test_a_screen_shows_an_incomplete_line_and_keeps_it_below_the_others() -> None:
    screen = Screen()
    relay = Relay(3, screen, screen)
    (first, _), (second, _), (_, third) = relay.add(0), relay.add(1), relay.add(2)
    relay.feed(first, b"Name? ")
    assert relay.hides()
    relay.quiet()
    assert not relay.hides()
    relay.feed(second, b"waiting")
    relay.feed(third, b"a warning\n")
    relay.quiet()
    assert screen.bytes.getvalue() == b"Name? \r\x1b[Ka warning\nName? "
    relay.feed(first, b"Ada\n")
    relay.quiet()
    assert screen.bytes.getvalue() == b"Name? \r\x1b[Ka warning\nName? Ada\nwaiting"
    relay.note("the end")
    assert screen.bytes.getvalue().endswith(b"\r\x1b[Kthe end\nwaiting")


def test_a_progress_bar_is_redrawn_as_it_stands() -> None:
    screen = Screen()
    relay = Relay(2, screen, screen)
    (bar, _), (other, _) = relay.add(0), relay.add(1)
    for piece in (b"\r10%", b"\r20%", b"\r30%\r"):
        relay.feed(bar, piece)
    relay.feed(other, b"line\n")
    relay.feed(bar, b"done\n")
    assert screen.bytes.getvalue() == b"\r10%\r20%\r30%\r\r\x1b[Kline\n30%\rdone\n"


def test_a_stream_of_text_only_is_written_text() -> None:
    text = io.StringIO()
    relay = Relay(1, text, None)
    stream, _ = relay.add(0)
    relay.feed(stream, "naïve\n".encode()[:3])
    relay.feed(stream, "naïve\n".encode()[3:])
    assert text.getvalue() == "naïve\n"


def traceback(of: str) -> bytes:
    return f"Traceback (most recent call last):\n  here\nTimeout: {of}\n  rank 3: outside\n".encode()


@pytest.mark.parametrize("tag", [False, True])
def test_equal_tracebacks_appear_once_and_the_last_is_that_of_the_rank_to_blame(tag: bool) -> None:
    file = File()
    relay = Relay(5, None, file, tag=tag)
    streams = [relay.add(rank)[1] for rank in range(5)]
    for rank in (0, 1, 3, 4):
        relay.feed(streams[rank], traceback(f"rank 2 did not come, while rank {rank} was in barrier #1"))
    relay.feed(streams[2], traceback("bad"))
    assert relay.error(0) == "Timeout: rank 2 did not come, while rank 0 was in barrier #1\n  rank 3: outside"
    relay.release(last=4)
    mark = ["[2] ", "[0] "] if tag else ["", ""]
    expected = [f"{mark[0]}{line}" for line in traceback("bad").decode().splitlines()]
    told = traceback("rank 2 did not come, while rank 0 was in barrier #1").decode().splitlines()
    expected += [f"{mark[1]}{line}" for line in told]
    assert file.bytes.getvalue().decode().splitlines() == [*expected, "rankwise: the same from ranks 0, 1, 3, 4"]
    assert not relay.holds()
