"""Notebooks in a real Jupyter kernel, for tests. Importing this skips the test if Jupyter is not installed."""

from __future__ import annotations

from typing import Any

import pytest

JUPYTER = "Jupyter is not installed: pip install nbclient ipykernel cloudpickle"
nbclient = pytest.importorskip("nbclient", reason=JUPYTER)
nbformat = pytest.importorskip("nbformat", reason=JUPYTER)
pytest.importorskip("ipykernel", reason=JUPYTER)
pytest.importorskip("cloudpickle", reason=JUPYTER)


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def client(book: Any, **options: Any) -> Any:
    return nbclient.NotebookClient(book, kernel_name="python3", timeout=100, **options)


def outputs(cell: Any) -> tuple[str, str]:
    """What the cell printed, and the value that it shows."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    shown = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return printed, "".join(shown)


def errors(cell: Any) -> list[str]:
    """The names of the errors that the cell raised."""
    return [output.ename for output in cell.outputs if output.output_type == "error"]
