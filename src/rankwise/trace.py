"""`rankwise.trace`: how long the program communicates, and spans of its own work for the trace of the job.

`measure` says how much a block of the program communicates, and how long it waits:

>>> with rw.trace.measure() as m:
...     group.barrier()
>>> m.by_operation["barrier"].count
1

`span` marks the program's own work:

>>> with rw.trace.span("forward"):
...     loss = sum(number**2 for number in range(1000))

`rankwise run --trace FILE` writes the last operations of each rank and these spans to FILE, and
`rankwise trace FILE` shows them side by side. Without --trace a span costs almost nothing and is not
recorded. Spans are buffered in memory, and written when the buffer is full or the process ends.
"""

from rankwise.observe.measure import OperationTotals, measure
from rankwise.observe.spans import add, on, span

__all__ = ["OperationTotals", "add", "measure", "on", "span"]
