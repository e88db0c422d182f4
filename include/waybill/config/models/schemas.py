"""Protobuf descriptor sets.

They are read and checked when the config is loaded, and read again in the tasks that parse messages by them. The
library is imported where it is used: most configs do not need it.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_MAX_LISTED_TYPES = 20
_PROTOC_COMMAND = "protoc --include_imports --descriptor_set_out=…"


def find_message(descriptor_set: bytes, name: str) -> Descriptor:
    """Return the message type with the full name `name` in a descriptor set of `protoc --include_imports`.

    Raise `ValueError` with a message of one line if the bytes are not a usable descriptor set. Raise `KeyError` with a
    list of the type names if the set has no such type.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except DecodeError as error:
        raise ValueError(f"is not a descriptor set ({_PROTOC_COMMAND}): {error}") from None
    if not files.file:
        raise ValueError(f"is not a descriptor set ({_PROTOC_COMMAND}): it contains no files")
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        try:
            pool.Add(file)
        except (TypeError, ValueError) as error:
            detail = " ".join(str(error).split())
            raise ValueError(
                f"cannot be used (was it written without --include_imports?): {file.name}: {detail}"
            ) from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = [found for file in files.file for found in _message_names(file.package, file.message_type)]
        raise KeyError(_nearest_first(name, names)) from None


def missing_field(message: Descriptor, path: tuple[str, ...]) -> list[str] | None:
    """Return None if a message can have a field at `path`.

    Else return the names of the fields at the first place where `path` leaves the message type.
    """
    within: Descriptor | None = message
    for name in path:
        if within is None:
            return []
        if _is_map_with_text_keys(within):
            within = within.fields_by_name["value"].message_type
            continue
        field = within.fields_by_name.get(name)
        if field is None:
            return [each.name for each in within.fields]
        # A path can lead into a map, by a text key, but not into a list.
        is_list = field.is_repeated and not _is_map_with_text_keys(field.message_type)
        within = None if is_list else field.message_type
    return None


def _is_map_with_text_keys(message: Any) -> bool:
    if message is None or not message.GetOptions().map_entry:
        return False
    key = message.fields_by_name["key"]
    return bool(key.type == key.TYPE_STRING)


def _message_names(scope: str, messages: Any) -> list[str]:
    names = []
    for message in messages:
        name = f"{scope}.{message.name}" if scope else message.name
        if not message.options.map_entry:
            names += [name, *_message_names(name, message.nested_type)]
    return names


def _nearest_first(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=_MAX_LISTED_TYPES, cutoff=0.6)
    listed = list(dict.fromkeys([*near, *names]))
    more = len(listed) - _MAX_LISTED_TYPES
    return ", ".join(listed[:_MAX_LISTED_TYPES]) + (f" and {more} more" if more > 0 else "")
