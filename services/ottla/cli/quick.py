"""Reading the command line of what must be ready at once, `ottla dev` and `ottla broker`, without Typer's machinery.

Typer reads a command line through pydantic, whose import alone takes a quarter of the half second in which a broker is to
be ready. The declarations stay Typer's, in the command's own signature; argparse reads the plain cases by them. Whatever
is not plain (help, a mistake, anything not known here) is left to Typer, which then says what it always says.
"""

from __future__ import annotations

import inspect
import re
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Final, NoReturn, get_args, get_origin

from typer.models import OptionInfo

_SHORT_WITH_EQUALS: Final = re.compile(r"-\w=")  # to argparse the value is what follows it, to Typer it begins with it


class NotPlain(Exception):
    """The command line is Typer's to read."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise NotPlain(message)


def _declare(parser: ArgumentParser, parameter: inspect.Parameter) -> None:
    """Adds what a parameter declares: `Annotated[T | None, typer.Option("--name", "-n", …)]`."""
    annotated, info = get_args(parameter.annotation)
    if not isinstance(info, OptionInfo) or info.envvar is not None:
        raise NotPlain
    kinds = [kind for kind in get_args(annotated) if kind is not NoneType] if NoneType in get_args(annotated) else [annotated]
    repeated = get_origin(kinds[0]) is list
    kind = get_args(kinds[0])[0] if repeated else kinds[0]
    if len(kinds) != 1 or kind not in (str, int, bool, Path):
        raise NotPlain
    # Inside `Annotated` the first name stands where the default would.
    names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    if kind is bool:
        parser.add_argument(*names, dest=parameter.name, action="store_true", default=SUPPRESS)
        return
    action, required = "append" if repeated else "store", parameter.default is inspect.Parameter.empty
    value = partial(_value_of, kind, info)
    parser.add_argument(*names, dest=parameter.name, action=action, type=value, required=required, default=SUPPRESS)


def _value_of(kind: type, info: OptionInfo, text: str) -> Any:
    value = kind(text)
    if (info.min is not None and value < info.min) or (info.max is not None and value > info.max):
        raise NotPlain
    if info.exists and not Path(text).is_file():
        raise NotPlain
    return value


def arguments_for(command: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments that these words stand for.

    Raises:
        NotPlain: Typer is to read them.
    """
    if any(map(_SHORT_WITH_EQUALS.match, words)):
        raise NotPlain
    parser = _Parser(add_help=False, allow_abbrev=False)
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        _declare(parser, parameter)
    return vars(parser.parse_args(words))
