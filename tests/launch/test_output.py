"""Merging the output of ranks, without processes."""

from __future__ import annotations

import io

import pytest

from rankwise.launch.output import LONGEST_LINE, OutputMultiplexer


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
    output = OutputMultiplexer(file, None)
    (first, _), (second, _) = output.add(0), output.add(1)
    output.feed(first, b"one ")
    output.feed(second, b"a\nb")
    output.feed(first, b"two\nthree")
    assert not output.hides()
    assert file.bytes.getvalue() == b"a\none two\n"
    output.end(first)
    output.end(second)
    assert file.bytes.getvalue() == b"a\none two\nthree\nb"


def test_tags_precede_lines() -> None:
    file = File()
    output = OutputMultiplexer(file, None, tag=True, alone=True)
    stream, _ = output.add(7)
    for piece in (b"a\n\nb", b"c\r\n", b"1%\r", b"2%", b"\r", b"\nend"):
        output.feed(stream, piece)
    output.end(stream)
    assert file.bytes.getvalue() == b"[7] a\n[7] \n[7] bc\r\n[7] 1%\r[7] 2%\r\n[7] end"


def test_one_rank_writes_as_if_alone() -> None:
    file = File()
    output = OutputMultiplexer(file, None, alone=True)
    stream, _ = output.add(0)
    output.feed(stream, b"Name? ")
    assert file.bytes.getvalue() == b"Name? "


def test_a_very_long_line_is_passed_in_pieces() -> None:
    file = File()
    output = OutputMultiplexer(file, None)
    (stream, _), _ = output.add(0), output.add(1)
    piece = bytes(LONGEST_LINE // 4 + 1)
    for _ in range(8):
        output.feed(stream, piece)
    assert file.bytes.getvalue() == piece * 8


def test_other_ranks_lines_wait_for_the_end_of_a_very_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.launch.output.LONGEST_LINE", 4)
    file = File()
    output = OutputMultiplexer(file, None)
    (first, _), (second, _), (third, _) = output.add(0), output.add(1), output.add(2)
    for stream, data in ((first, b"11111"), (second, b"a\n"), (third, b"33333"), (second, b"b\n"), (first, b"22222")):
        output.feed(stream, data)
    assert file.bytes.getvalue() == b"1111122222"
    output.feed(first, b"3\nc\n")
    output.feed(second, b"d\n")
    assert file.bytes.getvalue() == b"11111222223\nc\na\nb\n33333"
    output.end(third)  # in the middle of its line, which nobody completes
    assert file.bytes.getvalue() == b"11111222223\nc\na\nb\n33333\nd\n"


def test_a_very_long_line_is_broken_when_too_much_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.launch.output.LONGEST_LINE", 4)
    monkeypatch.setattr("rankwise.launch.output.MOST_WAITING", 3)
    file = File()
    output = OutputMultiplexer(file, None)
    (first, _), (second, _) = output.add(0), output.add(1)
    for stream, data in ((first, b"11111"), (second, b"a\n"), (second, b"b\n"), (first, b"2\n")):
        output.feed(stream, data)
    assert file.bytes.getvalue() == b"11111\na\nb\n2\n"


def test_a_screen_shows_an_incomplete_line_and_keeps_it_below_the_others() -> None:
    screen = Screen()
    output = OutputMultiplexer(screen, screen)
    (first, _), (second, _), (_, third) = output.add(0), output.add(1), output.add(2)
    output.feed(first, b"Name? ")
    assert output.hides()
    output.quiet()
    assert not output.hides()
    output.feed(second, b"waiting")
    output.feed(third, b"a warning\n")
    output.quiet()
    assert screen.bytes.getvalue() == b"Name? \r\x1b[Ka warning\nName? "
    output.feed(first, b"Ada\n")
    output.quiet()
    assert screen.bytes.getvalue() == b"Name? \r\x1b[Ka warning\nName? Ada\nwaiting"
    output.note("the end")
    assert screen.bytes.getvalue().endswith(b"\r\x1b[Kthe end\nwaiting")


def test_a_progress_bar_is_redrawn_as_it_stands() -> None:
    screen = Screen()
    output = OutputMultiplexer(screen, screen)
    (bar, _), (other, _) = output.add(0), output.add(1)
    for piece in (b"\r10%", b"\r20%", b"\r30%\r"):
        output.feed(bar, piece)
    output.feed(other, b"line\n")
    output.feed(bar, b"done\n")
    assert screen.bytes.getvalue() == b"\r10%\r20%\r30%\r\r\x1b[Kline\n30%\rdone\n"


def test_a_stream_of_text_only_is_written_text() -> None:
    text = io.StringIO()
    output = OutputMultiplexer(text, None, alone=True)
    stream, _ = output.add(0)
    output.feed(stream, "naïve\n".encode()[:3])
    output.feed(stream, "naïve\n".encode()[3:])
    assert text.getvalue() == "naïve\n"


def traceback(of: str) -> bytes:
    return f"Traceback (most recent call last):\n  here\nTimeout: {of}\n  rank 3: outside\n".encode()


@pytest.mark.parametrize("tag", [False, True])
def test_equal_tracebacks_appear_once_and_the_rank_to_blames_comes_last(tag: bool) -> None:
    file = File()
    output = OutputMultiplexer(None, file, tag=tag)
    streams = [output.add(rank)[1] for rank in range(5)]
    for rank in (0, 1, 3, 4):
        output.feed(streams[rank], traceback(f"rank 2 did not come, while rank {rank} was in barrier #1"))
    output.feed(streams[2], traceback("bad"))
    output.release(last=4)
    mark = ["[2] ", "[0] "] if tag else ["", ""]
    expected = [f"{mark[0]}{line}" for line in traceback("bad").decode().splitlines()]
    told = traceback("rank 2 did not come, while rank 0 was in barrier #1").decode().splitlines()
    expected += [f"{mark[1]}{line}" for line in told]
    assert file.bytes.getvalue().decode().splitlines() == [*expected, "rankwise: the same from ranks 0, 1, 3, 4"]
    assert not output.holds()


def test_what_other_ranks_have_shown_before_is_only_mentioned() -> None:
    file = File()
    output = OutputMultiplexer(None, file)
    streams = [output.add(rank)[1] for rank in range(3)]

    def shown(rank: int, last: int = -1, why: str = "rank 9 did not come") -> str:
        output.feed(streams[rank], traceback(f"{why}, while rank {rank} was in barrier #1"))
        file.bytes.truncate(0)
        file.bytes.seek(0)
        output.release(last=last)
        return file.bytes.getvalue().decode()

    assert shown(0).startswith("Traceback")
    assert shown(1) == "rankwise: the same from rank 1\n"
    assert shown(1).startswith("Traceback"), "a rank shows again what happens again"
    assert shown(2, last=2) == "rankwise: the same from rank 2\n", "the last traceback is that of the rank to blame"
    assert shown(0, why="another").startswith("Traceback")
    assert shown(2, last=2).startswith("Traceback"), "the last traceback is that of the rank to blame"
