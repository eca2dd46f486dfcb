"""Options that belong together: a command takes them as one parameter, typer sees each of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the options of a group where a command takes the group."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if is_dataclass(each.annotation)
    }

    @functools.wraps(command)
    def called(**given: Any) -> None:
        taken = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **taken)

    shown: list[inspect.Parameter] = []
    for name, each in signature.parameters.items():
        shown += _options_of(groups[name]) if name in groups else [_keyword(each)]
    called.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {each.name: each.annotation for each in shown}
    return called


def _options_of(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, keyword, default=each.default, annotation=kinds[each.name])
        for each in fields(group)
    ]


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
