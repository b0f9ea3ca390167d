"""Commands and their parameters: how the words of a Tcl call become the arguments of a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rankwise.frontends.tcl.handles import Handles

REQUIRED: Final = object()
"""Marks a parameter without a default."""

LONGEST: Final = 60
"""How many characters of an invalid value its error message repeats."""


def camel(name: str) -> str:
    """'distributed_all_reduce' -> 'distributedAllReduce'."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def invalid(option: str, given: object, must: str) -> ValueError:
    """The error for a parameter with an invalid value. option: as in the call, without its dash."""
    text = " ".join(str(given).split())
    if len(text) > LONGEST:
        text = text[: LONGEST - 3] + "..."
    return ValueError(f'Invalid -{option} parameter: "{text}". {must}')


@dataclass(frozen=True)
class ValueType:
    """A type of parameter. parse: returns a word's value, or raises ValueError. must: what is expected, for errors."""

    name: str
    must: str
    parse: Callable[[Handles, str], Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a command.

    name: the name of the function's argument; a call gives it as -name, in camelCase. default: REQUIRED
    or a value. complaint: the error message for an invalid word, if it differs from the usual one.
    """

    name: str
    value_type: ValueType
    help: str
    default: Any = REQUIRED
    complaint: str = ""

    @property
    def option(self) -> str:
        return camel(self.name)

    def value(self, handles: Handles, word: str) -> Any:
        try:
            return self.value_type.parse(handles, word)
        except ValueError:
            raise (
                ValueError(self.complaint) if self.complaint else invalid(self.option, word, self.value_type.must)
            ) from None


@dataclass(frozen=True)
class Command:
    """One command: torch::NAME, and its camelCase alias.

    function: takes the session, and the parameters by name. Its return value becomes the result: a NumPy
    array becomes a handle, None the empty string. what, returns, modes: a sentence or two each. example:
    Tcl code, with its output in comments `# Output: ...`. errors: messages that do not follow from the
    parameters. forms: the names of the positional parameters; of several forms, the first that fits the
    words applies. prints: the interpreter writes the result to standard output.
    """

    name: str
    function: Callable[..., Any]
    what: str
    parameters: tuple[Parameter, ...]
    returns: str
    example: str
    modes: str = ""
    errors: tuple[str, ...] = ()
    forms: tuple[tuple[str, ...], ...] = ()
    prints: bool = False

    @property
    def alias(self) -> str:
        return camel(self.name)

    @property
    def positional(self) -> tuple[tuple[str, ...], ...]:
        return self.forms or (tuple(parameter.name for parameter in self.parameters),)

    def parameter(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def arguments(self, handles: Handles, words: Sequence[str]) -> dict[str, Any]:
        """The values of all parameters, by name. A ValueError says which word is wrong and why."""
        if words and not self.parameters:
            raise ValueError(f"Wrong number of arguments. Expected: torch::{self.name}")
        if words and _is_option(words[0]):
            return self._values(handles, self._named(words))
        first: ValueError | None = None
        for form in self.positional:
            if len(words) <= len(form):
                try:
                    return self._values(handles, dict(zip(form, words, strict=False)))
                except ValueError as error:
                    first = first or error
        raise first or ValueError("Wrong number of arguments for positional syntax")

    def _named(self, words: Sequence[str]) -> dict[str, str]:
        """The words by parameter name. If a parameter is given twice, the last one counts, as in Tcl's own commands."""
        names = {f"-{parameter.option}": parameter.name for parameter in self.parameters}
        given: dict[str, str] = {}
        for i in range(0, len(words), 2):
            if words[i] not in names:
                raise ValueError(f"Unknown parameter: {words[i]}")
            if i + 1 == len(words):
                raise ValueError("Missing value for parameter")
            given[names[words[i]]] = words[i + 1]
        return given

    def _values(self, handles: Handles, given: Mapping[str, str]) -> dict[str, Any]:
        values = {}
        for parameter in self.parameters:
            if parameter.name in given:
                continue
            if parameter.default is REQUIRED:
                raise ValueError(f"Required parameter missing: -{parameter.option}")
            values[parameter.name] = parameter.default
        for parameter in self.parameters:
            if parameter.name in given:
                values[parameter.name] = parameter.value(handles, given[parameter.name])
        return values


def _is_option(word: str) -> bool:
    """Whether a call that begins with this word uses the named syntax; -5 and -inf are numbers."""
    return re.fullmatch(r"-(?!(inf|infinity|nan)$)[a-z_]\w*", word, re.IGNORECASE) is not None
