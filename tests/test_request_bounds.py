"""Every text, list and map that a caller may send has a bound, and what is beyond it is refused."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

import hrm.v1
from hrm import request_bounds as rb
from hrm.core.vocabulary.model import ContainerEnd, EndCause, Shortcut
from hrm.errors import InvalidRequest
from hrm.v1 import application_pb2, node_pb2
from hrm.wire import codec, node_stream

MODULES = [name for _, name, _ in pkgutil.iter_modules(hrm.v1.__path__) if name.endswith("_pb2")]
REGISTER = "/hrm.v1.ApplicationService/Register"


def methods() -> Iterator[tuple[str, Any]]:
    for name in MODULES:
        file = importlib.import_module(f"hrm.v1.{name}").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


def reached(descriptor: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        yield field
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from reached(field.message_type, seen)


def requested() -> dict[str, FieldDescriptor]:
    """Fields of all messages that are sent to a service, by the name that bounds have."""
    seen: set[str] = set()
    fields = [field for _, method in methods() for field in reached(method.input_type, seen)]
    return {f"{field.containing_type.name}.{field.name}": field for field in fields}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_text(field: FieldDescriptor) -> bool:
    return bool(field.cpp_type == FieldDescriptor.CPPTYPE_STRING)


BOUNDED = {k: f for k, f in requested().items() if f.is_repeated or is_text(f)}


def test_there_is_something_to_bound() -> None:
    assert len(list(methods())) > 30
    assert len(BOUNDED) > 100


@pytest.mark.parametrize("name", BOUNDED)
def test_every_field_that_can_grow_has_a_bound(name: str) -> None:
    field = BOUNDED[name]
    bound = rb.bound_of(field)
    assert bound is not None, f"{name} has no bound; add it to hrm.request_bounds.FIELDS"
    assert (bound.count > 0) == field.is_repeated
    assert (bound.length > 0) == is_text(field) or is_map(field)
    assert (bound.key > 0) == is_map(field)


def test_no_bound_is_of_a_field_that_nothing_sends() -> None:
    assert set(rb.FIELDS) - set(BOUNDED) == set()
    assert set(rb.TEXTS) - {field.name for field in BOUNDED.values() if is_text(field)} == set()
    assert set(rb.METHODS) - {name for name, _ in methods()} == set()


def bound_of(name: str) -> rb.FieldBound:
    bound = rb.bound_of(BOUNDED[name])
    assert bound is not None
    return bound


def grown(name: str, by: int) -> Any:
    """A message whose field ``name`` is at its bound, and ``by`` beyond."""
    field, bound = BOUNDED[name], bound_of(name)
    message = GetMessageClass(field.containing_type)()
    into = getattr(message, field.name)
    if is_map(field):
        of = field.message_type.fields_by_name["value"]
        value: Any = "v" if is_text(of) else 1
        for number in range(bound.count + by):
            into[f"k{number}"] = value
    elif field.is_repeated:
        for _ in range(bound.count + by):
            if field.message_type is not None:
                into.add()
            else:
                into.append("a" if is_text(field) else 1)
    else:
        letters = "a" * (bound.length + by)
        binary = field.type == FieldDescriptor.TYPE_BYTES
        setattr(message, field.name, letters.encode() if binary else letters)
    return message


@pytest.mark.parametrize("name", BOUNDED)
def test_at_its_bound_a_field_is_taken_and_one_beyond_refused(name: str) -> None:
    assert rb.violation(grown(name, 0)) == ""
    problem = rb.violation(grown(name, 1))
    assert name.partition(".")[2] in problem
    bound = bound_of(name)
    assert f"at most {bound.count or bound.length}" in problem


def test_the_elements_of_lists_and_the_names_of_maps_are_bounded_too() -> None:
    launch = application_pb2.RegisterApplicationRequest().launch
    launch.java_options.append("x" * (rb.ARGUMENT + 1))
    assert "an element of java_options has 131073 characters" in rb.violation(launch)
    launch.Clear()
    launch.environment["k" * (rb.LABEL + 1)] = ""
    assert "a name in environment has 1025 characters" in rb.violation(launch)
    launch.Clear()
    launch.environment["K"] = "v" * (rb.ARGUMENT + 1)
    assert "environment['K'] has 131073 characters" in rb.violation(launch)


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
def test_what_no_process_can_be_given_is_refused_at_once(name: str) -> None:
    request = application_pb2.RegisterApplicationRequest()
    request.launch.environment[name] = "x"
    assert "which can name no variable" in rb.violation(request)
    request.launch.Clear()
    request.launch.java_options.append("-D\0")
    assert "NUL" in rb.violation(request)


def test_the_bytes_of_a_message_are_checked_before_it_is_parsed() -> None:
    parsed: list[bytes] = []
    decode = rb.checked(REGISTER, parsed.append)
    decode(b"x" * rb.METHODS[REGISTER])
    with pytest.raises(InvalidRequest, match="a message to Register has 1048577 bytes; at most"):
        decode(b"x" * (rb.METHODS[REGISTER] + 1))
    assert len(parsed) == 1
    with pytest.raises(InvalidRequest, match="at most 262144"):
        rb.checked("/grpc.health.v1.Health/Check", parsed.append)(b"x" * 262_145)


def test_a_field_deep_inside_is_named_by_its_path() -> None:
    message = node_pb2.NodeMessage()
    message.heartbeat.containers.add().end.message = "x" * (rb.TEXT + 1)
    decode = rb.checked("/hrm.v1.NodeService/Connect", node_pb2.NodeMessage.FromString)
    with pytest.raises(InvalidRequest, match=r"^heartbeat.containers.end.message has 4097 char"):
        decode(message.SerializeToString())


@given(st.binary(max_size=300))
def test_short_messages_are_not_examined_and_need_not_be(data: bytes) -> None:
    """A message below the least bound breaks none, so ``least`` skips nothing."""
    try:
        message = node_pb2.NodeMessage.FromString(data)
    except Exception:
        return
    if rb.violation(message, len(data)) == "":
        assert rb.violation(message) == ""


def test_what_our_own_programs_pass_on_is_truncated_to_the_bound() -> None:
    long = "é" * 100_000
    shortcut = node_stream.from_shortcut(
        Shortcut(name="a", state="off", note=long, why_missed=long)
    )
    assert rb.violation(shortcut) == ""
    assert shortcut.note.endswith("…")
    assert node_stream.to_shortcuts([shortcut])[0].note == shortcut.note
    end = ContainerEnd(cause=EndCause.LAUNCH_FAILED, message=long)
    assert len(end.message) > rb.TEXT


@pytest.mark.parametrize("name", ["-x", ".x", "..", "", "a b", "a\0", "a\n", "é", "a/b", "a" * 254])
def test_what_is_no_id(name: str) -> None:
    with pytest.raises(InvalidRequest, match="field is"):
        codec.to_name(name, "field")


@pytest.mark.parametrize("name", ["a", "node-1", "_x", "7", "a.b_c-d", "a" * 253])
def test_what_is_an_id(name: str) -> None:
    assert codec.to_name(name, "field") == name
