"""Reading the command line of what must be ready at once, `ottla dev` and `ottla broker`, without Typer's machinery.

Typer reads a command line through pydantic, whose import alone takes a quarter of the half second in which a broker is to
be ready. The declarations stay Typer's, in the command's own signature; here the plain cases are read off them. Whatever
is not plain (help, a mistake, anything not known here) is left to Typer, which then says what it always says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from typer.models import OptionInfo


class NotPlain(Exception):
    """The command line is Typer's to read."""


@dataclass(frozen=True, slots=True)
class _Option:
    parameter: str
    kind: type
    repeated: bool
    required: bool
    info: OptionInfo

    def value_of(self, text: str) -> Any:
        try:
            value = self.kind(text)
        except ValueError:
            raise NotPlain from None
        if (self.info.min is not None and value < self.info.min) or (self.info.max is not None and value > self.info.max):
            raise NotPlain
        if self.info.exists and not Path(text).is_file():
            raise NotPlain
        return value


def _option(parameter: inspect.Parameter) -> _Option:
    """What a parameter declares: `Annotated[T | None, typer.Option("--name", "-n", …)]`."""
    annotated, info = get_args(parameter.annotation)
    if not isinstance(info, OptionInfo) or info.envvar is not None:
        raise NotPlain
    kinds = [kind for kind in get_args(annotated) if kind is not NoneType] if NoneType in get_args(annotated) else [annotated]
    repeated = get_origin(kinds[0]) is list
    kind = get_args(kinds[0])[0] if repeated else kinds[0]
    if len(kinds) != 1 or kind not in (str, int, bool, Path):
        raise NotPlain
    return _Option(parameter.name, kind, repeated, parameter.default is inspect.Parameter.empty, info)


def _names(info: OptionInfo) -> list[str]:
    """`--port`, `-p`. Inside `Annotated` the first of them stands where the default would."""
    return [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]


def arguments_for(command: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments that these words stand for.

    Raises:
        NotPlain: Typer is to read them.
    """
    options = [_option(parameter) for parameter in inspect.signature(command, eval_str=True).parameters.values()]
    by_name = {name: option for option in options for name in _names(option.info)}
    arguments: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        option = by_name.get(name)
        if option is None or (option.parameter in arguments and not option.repeated):
            raise NotPlain
        if option.kind is bool:
            if equals:
                raise NotPlain
            arguments[option.parameter] = True
            continue
        if not equals:
            if not rest or rest[0].startswith("-"):
                raise NotPlain
            text = rest.pop(0)
        elif not name.startswith("--"):
            raise NotPlain
        value = option.value_of(text)
        if option.repeated:
            arguments.setdefault(option.parameter, []).append(value)
        else:
            arguments[option.parameter] = value
    if any(option.required and option.parameter not in arguments for option in options):
        raise NotPlain
    return arguments
