"""The base of Works that add something to another Work."""

from __future__ import annotations

from typing import Any

from rankwise.contract.work import Work


class OuterWork(Work[Any]):
    """Passes everything on to another Work, `inner`. A subclass overrides the methods to which it adds something."""

    def __init__(self, inner: Work[Any]) -> None:
        self.inner = inner

    def wait(self, timeout: float | None = None) -> Any:
        return self.inner.wait(timeout)

    def done(self) -> bool:
        return self.inner.done()

    def cancel(self) -> bool:
        return self.inner.cancel()

    def __getattr__(self, name: str) -> Any:
        if name in ("source", "tag"):  # of a receive
            return getattr(self.inner, name)
        raise AttributeError(name)
