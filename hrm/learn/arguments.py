"""The parameters of a trainer, a dataclass of plain values, as arguments of its command."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["parsed", "words_of"]

A = TypeVar("A")


def words_of(args: Any) -> list[str]:
    """The arguments of the command for ``args``, without ``out`` and those that are defaults."""
    words: list[str] = []
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name != "out" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return words


def parsed(kind: type[A], words: Sequence[str], *, module: str, about: str | None) -> A:
    """A ``kind`` from the arguments of a command line: one option for each of its fields, of which
    ``--help`` shows the docstring and the default."""
    meanings = _meanings(kind) if {"-h", "--help"} & set(words) else {}
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        flag = f"--{field.name.replace('_', '-')}"
        shown = str(field.default).replace("%", "%%") or "none"
        meaning = f"{meanings.get(field.name, '').replace('%', '%%')} (default: {shown})"
        parser.add_argument(
            flag, type=type(field.default), default=field.default, help=meaning.strip()
        )
    return kind(**vars(parser.parse_args(words)))


def _meanings(kind: type) -> dict[str, str]:
    """The docstrings of its fields, which Python does not keep: from its source."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef), "a dataclass"
    found = {}
    for stated, said in zip(made.body, made.body[1:], strict=False):
        match stated, said:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
