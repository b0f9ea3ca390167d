"""`rankwise trace --html`: the page says what the report says, loads nothing, and draws in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from chromium import ABSENT, CHROMIUM, shown
from rankwise.observe.trace_file import RankTrace, Span, Trace, TracedOperation
from rankwise.tools.stragglers import group_operations, waits
from rankwise.tools.trace import main
from rankwise.tools.trace_page.page import page

MS = 1_000_000  # ns


def operation(number: int, begin: int, end: int | None, waited: int) -> TracedOperation:
    return TracedOperation(
        number, "all_reduce", 0, "0", number, "float32", "sum", None, None, None, 8192, begin, end, waited, False, False
    )  # fmt: skip


def trace_of(ranks: int, operations: int) -> Trace:
    """Rank 1 begins each operation 2 ms after the others, which wait for it."""
    found = [
        RankTrace(
            rank,
            100 + rank,
            "exited with status 0",
            "outside",
            [
                operation(k, k * 10 * MS + 2 * MS * (rank == 1), k * 10 * MS + 5 * MS, 2 * MS * (rank != 1))
                for k in range(1, operations + 1)
            ],
            [Span("compute", "step </script>", 0, 4 * MS)],
        )
        for rank in range(ranks)
    ]
    return Trace(["python", "<train>.py"], 0, (operations + 2) * 10 * MS, None, [], found)


def waited(trace: Trace) -> dict[tuple[int, int], int]:
    return waits(trace, group_operations(trace))


def test_who_waited_for_whom() -> None:
    assert waited(trace_of(3, 5)) == {(0, 1): 10 * MS, (2, 1): 10 * MS}


def test_ranks_that_never_came_share_the_waits_for_them() -> None:
    trace = trace_of(3, 2)
    stuck = [operation(3, 30 * MS, None, 6 * MS)]
    trace.ranks[0].operations.extend(stuck)
    found = waited(trace)
    assert found[0, 1] == 2 * 2 * MS + 3 * MS
    assert found[0, 2] == 3 * MS


def test_the_receiver_of_a_message_waited_for_its_sender() -> None:
    trace = trace_of(3, 0)
    receive = replace(operation(1, 0, 9 * MS, 7 * MS), name="recv", sequence=0, peer=1)
    from_any, in_a_part = replace(receive, peer=-1), replace(receive, group=1)
    trace.ranks[2].operations.extend([receive, receive, from_any, in_a_part])
    assert waited(trace) == {(2, 1): 14 * MS}
    assert re.search(r"<th>rank 2</th><td[^>]*></td><td[^>]*>14 ms</td>", page(trace))
    assert "<td>recv float32 sum</td>" in page(trace)


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = page(trace_of(3, 5))
    assert "3 ranks for 70 ms: python &lt;train&gt;.py" in text
    assert "<p>nothing failed: 15 operations recorded in 70 ms</p>" in text
    assert re.search(r"<td>step &lt;/script&gt;</td><td>compute</td><td class=number>3</td>", text)
    assert not re.search(r"<!-- \w+ -->", text)
    assert not re.search(r"""(src|href)=|url\(|import\(|fetch\(""", text)
    assert text.count("</script>") == 2  # the span's name has one too
    events = re.search(r'<script id="events" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert events is not None
    names = {event["name"] for event in json.loads(events[1])}
    assert {"step </script>", "all_reduce #1", "waiting"} <= names
    assert re.search(r"<th>rank 0</th><td[^>]*></td><td[^>]*>10 ms</td>", text)


def test_a_trace_without_operations_says_so() -> None:
    text = page(replace(trace_of(2, 0), failure="rank 1 <died>"))
    assert "<p class=failure>rank 1 &lt;died&gt;</p>" in text
    assert text.count("The trace holds no operation that all ranks began.") == 1


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(2, 3).write(tmp_path / "t.json")
    assert main([str(tmp_path / "t.json"), "--html", str(tmp_path / "t.html")]) == 0
    assert f"page: {tmp_path / 't.html'} (open it in a browser)" in capsys.readouterr().out
    assert "all_reduce #3" in (tmp_path / "t.html").read_text()
    assert main([str(tmp_path / "t.json"), "--html", str(tmp_path / "none" / "t.html")]) == 1
    assert "rankwise trace: error: " in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason=ABSENT)
@pytest.mark.parametrize(("ranks", "operations"), [(2, 3), (8, 1000)])
def test_a_browser_draws_it(ranks: int, operations: int, tmp_path: Path) -> None:
    """The last line of the page's script says how many rows it has drawn, after any error would have ended it."""
    (tmp_path / "t.html").write_text(page(trace_of(ranks, operations)))
    drawn = shown((tmp_path / "t.html").as_uri(), tmp_path / "profile")
    assert f'data-drawn="{2 * ranks}"' in drawn  # the collectives and the spans of each
    assert re.search(r'<canvas id="view"[^>]* height="[1-9]\d+"', drawn)
