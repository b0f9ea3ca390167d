"""The operations as functions of the module, on the default group. `rankwise/__init__.py` declares their types."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rankwise.group.default_group import default_group
from rankwise.group.group import Group
from rankwise.group.guessed_names import wrong_call


def function_of(name: str) -> Callable[..., Any]:
    """A function that calls the operation `name` of the default group, with the same docstring and parameters."""
    method = getattr(Group, name)
    signature = inspect.signature(method)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "self"]

    @functools.wraps(method)
    def operation(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(default_group(), *args, **kwargs)
        except TypeError as error:
            here = error.__traceback__
            if here is not None and here.tb_next is None:  # the call itself failed
                text = wrong_call(name, error, parameters)
                if text is not None:
                    raise TypeError(text) from None
            raise

    operation.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    operation.__qualname__ = method.__name__
    operation.__module__ = "rankwise"
    return operation
