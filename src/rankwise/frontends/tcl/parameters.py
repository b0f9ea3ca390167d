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
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def invalid(option: str, given: object, must: str) -> ValueError:
    """The error for a parameter with an invalid value. option: as in the call, without its dash."""
    return ValueError(f"Invalid -{option} parameter: {quoted(given)}. {must}")


def quoted(given: object) -> str:
    """What was given, in quotation marks and shortened if it is long."""
    text = " ".join(str(given).split())
    return f'"{text[: LONGEST - 3]}..."' if len(text) > LONGEST else f'"{text}"'


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
    or a value. complaint: the error message for an invalid word, if it differs from the usual one; {given}
    stands for the word. positional_complaint: the same for the positional syntax, if it differs there.
    """

    name: str
    value_type: ValueType
    help: str
    default: Any = REQUIRED
    complaint: str = ""
    positional_complaint: str = ""

    @property
    def option(self) -> str:
        return camel(self.name)

    def value(self, handles: Handles, word: str, positional: bool) -> Any:
        try:
            return self.value_type.parse(handles, word)
        except ValueError:
            complaint = (positional and self.positional_complaint) or self.complaint
            if not complaint:
                raise invalid(self.option, word, self.value_type.must) from None
            raise ValueError(complaint.format(given=quoted(word))) from None


@dataclass(frozen=True)
class Wording:
    """The error messages of a command about the words of a call.

    {given} stands for the word in question, {missing} for the missing parameters, {usage} for the first
    positional form. few: the message for missing parameters in the positional syntax, if it is not `missing`.
    """

    missing: str = "Required parameter missing: {missing}"
    few: str = ""
    many: str = "Wrong number of arguments for positional syntax"
    unknown: str = "Unknown parameter: {given}"
    no_value: str = "Missing value for parameter"


WRONG_ARGS = 'wrong # args: should be "{usage}"'
"""What Tcl's own commands say."""


@dataclass(frozen=True)
class Command:
    """One command: torch::NAME, and its camelCase alias.

    function: takes the session, and the parameters by name. Its return value becomes the result: a tensor,
    a module or an optimizer becomes a handle, None the empty string. what, returns, modes: a sentence or two
    each. example: Tcl code, with its output in comments `# Output: ...`. errors: messages that do not follow
    from the parameters. forms: the names of the positional parameters; of several forms, the first that fits the
    words applies. wording: the error messages about the words of a call. prints: the interpreter writes the
    result to standard output.
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
    wording: Wording = Wording()
    prints: bool = False

    @property
    def alias(self) -> str:
        return camel(self.name)

    @property
    def positional(self) -> tuple[tuple[str, ...], ...]:
        return self.forms or (tuple(parameter.name for parameter in self.parameters),)

    @property
    def usages(self) -> list[str]:
        """Each positional form as text, optional parameters in question marks."""
        return [
            " ".join([f"torch::{self.name}", *(_positional(self.parameter(name)) for name in form)])
            for form in self.positional
        ]

    def parameter(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def arguments(self, handles: Handles, words: Sequence[str]) -> dict[str, Any]:
        """The values of all parameters, by name. A ValueError says which word is wrong and why."""
        if words and self.parameters and _is_option(words[0]):
            return self._values(handles, self._named(words), positional=False)
        errors: list[tuple[int, ValueError]] = []  # each with the number of words before the wrong one
        for form in self.positional:
            if len(words) <= len(form):
                try:
                    return self._values(handles, dict(zip(form, words, strict=False)), positional=True)
                except ValueError as error:
                    errors.append((self._valid_words(handles, form, words), error))
        if not errors:
            raise self._error(self.wording.many)
        raise max(errors, key=lambda error_at: error_at[0])[1]

    def _valid_words(self, handles: Handles, form: Sequence[str], words: Sequence[str]) -> int:
        """How many words come before the first one that does not fit the form."""
        for number, (name, word) in enumerate(zip(form, words, strict=False)):
            try:
                self.parameter(name).value(handles, word, True)
            except ValueError:
                return number
        return len(words)

    def _named(self, words: Sequence[str]) -> dict[str, str]:
        """The words by parameter name. If a parameter is given twice, the last one counts, as in Tcl's own commands."""
        names = {f"-{parameter.option}": parameter.name for parameter in self.parameters}
        given: dict[str, str] = {}
        for i in range(0, len(words), 2):
            if words[i] not in names:
                raise self._error(self.wording.unknown, given=words[i])
            if i + 1 == len(words):
                raise self._error(self.wording.no_value, given=words[i])
            given[names[words[i]]] = words[i + 1]
        return given

    def _values(self, handles: Handles, given: Mapping[str, str], positional: bool) -> dict[str, Any]:
        missing = [p.option for p in self.parameters if p.default is REQUIRED and p.name not in given]
        if missing:
            text = (positional and self.wording.few) or self.wording.missing
            raise self._error(text, missing=", ".join(f"-{option}" for option in missing))
        return {
            parameter.name: parameter.value(handles, given[parameter.name], positional)
            if parameter.name in given
            else parameter.default
            for parameter in self.parameters
        }

    def _error(self, text: str, **facts: str) -> ValueError:
        return ValueError(text.format(usage=self.usages[0], **facts))


def _positional(parameter: Parameter) -> str:
    return parameter.name if parameter.default is REQUIRED else f"?{parameter.name}?"


def _is_option(word: str) -> bool:
    """Whether a call that begins with this word uses the named syntax; -5 and -inf are numbers."""
    return re.fullmatch(r"-(?!(inf|infinity|nan)$)[a-z_]\w*", word, re.IGNORECASE) is not None
