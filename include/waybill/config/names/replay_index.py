"""The keys of the replay index: one prefix for each chain, and index files named after the offsets that they cover."""

from __future__ import annotations

import re

from waybill.config.names.segments import OFFSET_PATTERN, Folder, own_key, padded_offset
from waybill.config.names.topics import TopicPartition, check_topic

_FILE = re.compile(rf"({OFFSET_PATTERN})-({OFFSET_PATTERN})\.index")


def replay_index_prefix(prefix: str, generation: int, tp: TopicPartition) -> str:
    """Return the prefix of the index files of a chain."""
    return own_key(prefix, Folder.REPLAY_INDEX, check_topic(tp.topic), f"{generation}_{tp.partition}", "")


def replay_index_key(prefix: str, generation: int, tp: TopicPartition, first_offset: int, next_offset: int) -> str:
    """Return the key of the index file of the backup objects with the offsets `[first_offset, next_offset)`."""
    name = f"{padded_offset(first_offset)}-{padded_offset(next_offset)}.index"
    return f"{replay_index_prefix(prefix, generation, tp)}{name}"


def replay_index_range(key: str) -> tuple[int, int]:
    """Return the offsets that an index file covers. Raises `ValueError` for a key that is not one of an index file."""
    match = _FILE.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise ValueError(f"{key!r} is not the key of a file of the replay index")
    return int(match[1]), int(match[2])
