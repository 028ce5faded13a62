"""The project's style, as far as it can be checked automatically.

Sizes, docstrings, dead modules, ``__all__``, leftovers, marks of unfinished merges; and that README
and docs name only files, commands and targets that exist. ruff and mypy check the rest.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import shlex
import subprocess
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hrm.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
LINE_MAX = 100
FUNCTION_LINES_MAX = 70

LONG_FUNCTIONS: dict[str, str] = {}
"""``path:function`` -> why its natural shape is longer."""

RUN_BY_NAME = {
    "hrm/agent/containers/shim.py": "started by its path, so that it imports nothing",
    "hrm/spark/build.py": "started by its path in spark-env.sh, so that it imports little",
    "hrm/spark/renamed_files.py": "started by its path in spark-env.sh, so that it imports little",
    "hrm/spark/rehearsal.py": "an application, given to spark-submit by its path",
    "hrm/pipelines/sim/learning.py": "named as text, module:factory, where somebody learns",
    "hrm/policies/api.py": "for packages of policies",
    "hrm/core/invariants.py": "for tests and simulations, the user's own among them",
}
"""Modules that nothing needs to import, and how they run instead."""

PRINTERS = (
    "hrm/cli/", "hrm/agent/containers/shim.py", "hrm/agent/daemon.py",
    "hrm/master/daemon.py", "hrm/scheduler/daemon.py", "hrm/spark/build.py",
)  # fmt: skip
"""Where print() may be: programs whose output it is. All others log."""

ALIKE = [
    {"SetContainerClass", "ContainerClassSet"},
    {"RequestContainers", "ContainerRequest"},
]
"""Public classes of the same words that are meant so: a command, and what it becomes where it is
carried out."""

PRAGMA = re.compile(r"  # (?:nosec|noqa|type: ignore|fmt:).*$")
"""Pragmas of tools at the end of a line do not count towards its length."""

MERGE_MARK = re.compile(rb"^(?:(?:<{7}|>{7}|[|]{7})(?: .*)?|={7})\r?$", re.MULTILINE)
"""Git's marks around the two sides of a conflict."""

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH_LIKE = re.compile(
    r"^(?:\./)?(?:hrm|proto|tests|docs|benchmarks|spark-conf|\.ci)/[\w./-]*$|^[\w.-]+\.(?:md|toml)$"
)
REFUSED_WORDS = {
    r"mak(?:es?|ing) way": "is preempted",
    r"evict\w*": "preempted; evicted is what a cache drops",
    r"rooms?": "capacity, space",
    r"(?:tells?(?!\()|told)": "notifies, reports, distinguishes",
    r"strangers?": "orphan, client",
    r"hurr(?:y|ies)": "shortens its grace period",
    r"spending": "taking, reserving",
    r"anew": "again",
    r"wishes": "commands, requests",
    r"(?:ledger|mirrors?)": "state, copy",
    r"(?:pardons?|accuses?|judges?)": "exclude, evaluate, clear",
    r"promises?": "reservation",
}
"""Words that the glossary of docs/architecture.md has others for, and which."""

WORDS_ALLOWED = {
    ("hrm/pipelines/master/result_files.py", "evicted"),
    ("hrm/pipelines/policies/corun/subtask_estimates.py", "evicted"),
    ("docs/pipelines.md", "evicted"),
    ("hrm/sim/event_format.py", "room"),  # a field of the protocol, in logs whose hashes are kept
}

USERS_FILES = {"hrm.toml"}
"""Files named in documents that belong to the user."""


def _python_files(*folders: str) -> list[Path]:
    found = [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]
    return [p for p in found if "hrm/v1/" not in p.as_posix() and "__pycache__" not in p.parts]


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _modules() -> list[Path]:
    return _python_files("hrm")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _lines(found: Iterable[str]) -> str:
    return "\n" + "\n".join(sorted(found))


everything = _python_files("hrm", "tests", "benchmarks", "docs")


def test_there_is_something_to_check() -> None:
    assert len(_modules()) > 10
    assert len(_documents()) > 3


def test_lines_are_short() -> None:
    others = [*ROOT.glob("proto/**/*.proto"), *ROOT.glob(".ci/*")]
    others += [path for top in ("hrm", "tests") for path in (ROOT / top).rglob("*.scala")]
    limits = dict.fromkeys((*everything, *others), LINE_MAX)
    limits |= {path: 120 for path in limits if path.suffix in (".proto", ".scala")}
    long = [
        f"{_relative(path)}:{number}"
        for path, limit in limits.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(PRAGMA.sub("", line)) > limit
    ]
    assert not long, _lines(long)


def test_functions_are_short() -> None:
    long = {
        f"{_relative(path)}:{node.name}"
        for path in everything
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert not long - set(LONG_FUNCTIONS), _lines(long - set(LONG_FUNCTIONS))
    assert set(LONG_FUNCTIONS) - long == set(), "no longer long: take them off the list"


def test_modules_have_docstrings() -> None:
    silent = [
        _relative(path)
        for path in everything
        if not ast.get_docstring(_tree(path)) and (_tree(path).body or path in _modules())
    ]
    assert not silent, _lines(silent)


def test_no_two_public_classes_have_the_same_words() -> None:
    """In whatever order, in the singular or the plural."""
    places: dict[frozenset[str], list[str]] = {}
    for path in _modules():
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                words = re.findall(r"[A-Z][a-z0-9]+|[A-Z]+(?![a-z])", node.name)
                alike = frozenset(re.sub("e?s$", "", word.lower()) for word in words)
                places.setdefault(alike, []).append(f"{node.name} of {_relative(path)}")
    assert len(places) > 100
    found = [" and ".join(where) for where in places.values() if len(where) > 1]
    left = [line for line in found if {x.split()[0] for x in line.split(" and ")} not in ALIKE]
    assert not left, _lines(left)
    assert len(found) - len(left) == len(ALIKE), "no longer alike: take them off the list"


def test_no_two_modules_of_the_core_share_a_name() -> None:
    """Nor do they share one with a module next to the packages. A machine's own module is called
    ``core``, and the messages of a component like the component."""
    places: dict[str, list[str]] = {}
    for path in (*sorted((ROOT / "hrm").glob("*.py")), *_python_files("hrm/core")):
        if path.name not in ("__init__.py", "core.py") and path.parent.name != "messages":
            places.setdefault(path.stem, []).append(_relative(path))
    assert len(places) > 50
    found = [f"{name}: {' and '.join(where)}" for name, where in places.items() if len(where) > 1]
    assert not found, _lines(found)


def test_no_two_modules_of_the_core_know_each_other() -> None:
    """Not even for types: those of the lower one state what it needs (``Protocol``)."""
    core = _python_files("hrm/core")
    found = [_relative(path) for path in core if "TYPE_CHECKING" in path.read_text()]
    assert not found, _lines(found)


def test_no_module_is_dead() -> None:
    """Every module of hrm is imported by another one of hrm or the benchmarks, or run by name."""
    users = [*_modules(), *_python_files("benchmarks")]
    imported: set[str] = set()
    for path in users:
        imported |= set(_imports(path))
    # Modules that are imported when their command is typed are there as text.
    imported |= {str(value) for value in importlib.import_module("hrm.cli.app").COMMANDS.values()}
    # So are those that an entry point names.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = [value for group in project["entry-points"].values() for value in group.values()]
    imported |= {value.partition(":")[0] for value in points}
    scripts = "".join((ROOT / p).read_text() for p in ("Makefile", "spark-conf/spark-env.sh"))
    dead = [
        _relative(path)
        for path in _modules()
        if _dotted(path) not in imported
        and _relative(path) not in RUN_BY_NAME
        and path.name not in ("__init__.py", "__main__.py")
        and f'"-m", "{_dotted(path)}"' not in "".join(p.read_text() for p in users)
        and f"-m {_dotted(path)}" not in scripts
        and not path.is_relative_to(ROOT / "hrm/testing")  # public: users and tests import it
    ]
    assert not dead, _lines(dead)
    assert [name for name in RUN_BY_NAME if not (ROOT / name).is_file()] == []


def _imports(path: Path) -> Iterator[str]:
    package = _dotted(path) if path.name == "__init__.py" else _dotted(path).rpartition(".")[0]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", _modules(), ids=_relative)
def test_public_names_are_listed_and_exist(path: Path) -> None:
    tree = _tree(path)
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    if path.name in ("__init__.py", "__main__.py") and not listed:
        return
    assert listed, "no __all__"
    names: list[str] = listed[0]
    assert len(names) == len(set(names)), "a name stands twice in __all__"
    module = importlib.import_module(_dotted(path))
    assert [name for name in names if not hasattr(module, name)] == []


def test_nothing_is_left_to_do_and_nothing_is_printed() -> None:
    found = []
    for path in _modules():
        for number, word in _words(path):
            prints = word == "print" and not _relative(path).startswith(PRINTERS)
            if prints or word in ("TODO", "FIXME", "XXX", "NotImplementedError"):
                found.append(f"{_relative(path)}:{number}: {word}")
    assert not found, _lines(found)


def test_one_thing_has_one_word() -> None:
    refused = re.compile(rf"\b(?:{'|'.join(REFUSED_WORDS)})\b", re.IGNORECASE)
    texts = {path: FENCE.sub("", path.read_text()) for path in _documents()}
    texts = {path: re.sub(r"`[^`\n]+`", "", text) for path, text in texts.items()}
    protos = sorted(ROOT.glob("proto/**/*.proto"))
    texts |= {path: "\n".join(re.findall(r"//.*", path.read_text())) for path in protos}
    texts |= {path: "\n".join(_prose(path)) for path in _modules()}
    found = {
        (_relative(path), match[0].lower())
        for path, text in texts.items()
        for match in refused.finditer(text)
    }
    assert not found - WORDS_ALLOWED, _lines(f"{x}: {y}" for x, y in found - WORDS_ALLOWED)
    assert found >= WORDS_ALLOWED, "no longer there: take it off the list"


def _prose(path: Path) -> Iterator[str]:
    """Comments, docstrings and other text of a module."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield token.string


def test_no_merge_is_left_half_done() -> None:
    """In any tracked file, of whatever kind."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    tracked = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(tracked) > 100
    found = [
        f"{_relative(path)}:{number}"
        for path in tracked
        if path.is_file() and not path.is_symlink()
        for number in _merge_marks(path.read_bytes())
    ]
    assert not found, _lines(found)


def _merge_marks(text: bytes) -> list[int]:
    return [text.count(b"\n", 0, mark.start()) + 1 for mark in MERGE_MARK.finditer(text)]


def test_merge_marks_are_distinguished_from_similar_lines() -> None:
    both = b"a\n<<<<<<< HEAD\nb\n||||||| base\n=======\nc\n>>>>>>> main\nd\n"
    assert _merge_marks(both) == [2, 4, 5, 7]
    assert _merge_marks(both.replace(b"\n", b"\r\n")) == [2, 4, 5, 7]
    for harmless in (
        b"========",
        b"======= ===",
        b" =======",
        b"x <<<<<<< y",
        b">>>>>>>>",
        b"======",
    ):
        assert _merge_marks(harmless) == [], harmless


def _words(path: Path) -> Iterator[tuple[int, str]]:
    """Names that code uses, calls of ``print`` as such, and the words of comments."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            words = re.findall(r"\w+", token.string)
            yield from ((token.start[0], word) for word in words if word != "print")
        elif token.type == tokenize.NAME and token.string == "NotImplementedError":
            yield token.start[0], token.string
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id


@pytest.mark.parametrize("document", _documents(), ids=_relative)
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text()
    prose = FENCE.sub("", text)
    missing = []
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:|#", target):
            continue
        name, _, anchor = target.partition("#")
        file = document.parent / name
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            missing.append(target)
    named = [c for c in re.findall(r"`([^`\n]+)`", prose) if PATH_LIKE.match(c)]
    missing += [c for c in named if c not in USERS_FILES and not (ROOT / c).exists()]
    assert not missing, _lines(missing)


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


def _command_lines(document: Path) -> Iterator[str]:
    """Commands in code blocks and in inline code, without prompts, comments and continuations."""
    text = document.read_text()
    for _, language, block in FENCE.findall(text):
        if language in ("sh", "bash", "console", "shell"):
            for line in block.replace("\\\n", " ").splitlines():
                yield line.strip().removeprefix("$ ")
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def _split(line: str) -> list[list[str]]:
    """The simple commands of a shell line, as words."""
    inside = re.findall(r"\$\(([^()]*)\)", line)
    found = []
    for part in [*re.split(r"\s*(?:;|&&|\|\|?)\s*", re.sub(r"\s#.*", "", line)), *inside]:
        try:
            words = shlex.split(part)
        except ValueError:
            continue
        while words and re.match(r"^[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            found.append(words)
    return found


def _commands(program: str) -> list[tuple[str, list[str]]]:
    return [
        (f"{_relative(document)}: {' '.join(words)}", words[1:])
        for document in _documents()
        for line in _command_lines(document)
        for words in _split(line)
        if words[0] == program
    ]


def test_documented_commands_parse() -> None:
    wrong = {}
    for where, arguments in _commands("hrm"):
        problem = _parse(arguments)
        if problem:
            wrong[where] = problem
    assert not wrong, _lines(f"{where}: {problem}" for where, problem in wrong.items())
    assert len(_commands("hrm")) > 10


def _parse(arguments: list[str]) -> str:
    """Why ``hrm`` would refuse the arguments; empty where it would not. Runs nothing."""
    command: Any = get_command(app)
    context: Any = None
    rest = [a for a in arguments if a not in ("…", "...")]
    try:
        while True:
            context = command.make_context(command.name, list(rest), parent=context)
            if not hasattr(command, "get_command"):
                return ""
            rest = [*context._protected_args, *context.args]
            _, command, rest = command.resolve_command(context, rest)
    except Exception as error:
        # --help and --version end the parsing, and a group alone shows its help.
        harmless = type(error).__name__ in ("Exit", "NoArgsIsHelpError")
        words_only = type(error).__name__ == "MissingParameter"  # prose: `hrm app why`
        return "" if harmless or words_only else f"{type(error).__name__}: {error}"


def test_the_parser_of_this_test_refuses_what_hrm_refuses() -> None:
    for wrong in (["statsu"], ["up", "--node", "x"], ["up", "--nodes", "many"], ["app", "hide"],
                  ["apps", "--al"], ["status", "extra"]):  # fmt: skip
        assert _parse(wrong), wrong
    for right in (["app", "logs", "app-1", "--follow"], ["spark-submit", "--any", "x.py"]):
        assert _parse(right) == "", right


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word for _, words in _commands("make") for word in words if re.match(r"^[a-z-]+$", word)
    }
    assert named - targets == set()
    assert {"demo", "test"} <= targets
