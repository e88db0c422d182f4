"""The compiled loop of Avro: it walks messages along a schema's program, checks every byte, and stores values.

Every length and count is compared with the bytes that are left before it is used. So no message can make the walk read
outside of the message, run forever, or overflow the stack. Encoding: Apache Avro's specification, "Binary encoding".

A schema may have values without bytes (nulls, empty records), and records of records of them, twice as many at each
level. So the walk counts its steps, and the number of steps for each byte of a message is limited.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from waybill.records.batches._kernels import Array, Int, compiled

FREE_STEPS = 4_096
"""The steps that each message has in addition to those for its bytes."""
# The elements of `limits`: the most records, arrays and maps that may be nested; the most steps for each byte of a
# message; the most items without bytes that its arrays may have together. A step reads a value, a union's index, or
# enters a record, an array or a map.
DEPTH, STEPS_PER_BYTE, EMPTY_ITEMS, LIMITS = range(4)


class AvroKind(IntEnum):
    """The type that a node of a program reads."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    FIXED = 8
    ENUM = 9
    UNION = 10
    ARRAY = 11
    MAP = 12
    RECORD = 13


class AvroFault(IntEnum):
    """The error that the walk has found in a message."""

    NONE = 0
    TRUNCATED = 1
    NUMBER = 2
    BOOLEAN = 3
    LENGTH = 4
    UTF8 = 5
    ENUM = 6
    UNION = 7
    COUNT = 8
    DEPTH = 9
    TRAILING = 10
    STEPS = 11
    EMPTY_ITEMS = 12


# The rows of `program`, which has one column per node. ARG: the size of a fixed, or the number of an enum's symbols.
# FIRST, COUNT: the range of its children in `children`. MIN_BYTES: its smallest encoded size. SLOT: the slot that its
# value is written to, -1 for none.
KIND, ARG, FIRST, COUNT, MIN_BYTES, SLOT, NODE_ROWS = range(7)
# The columns of `faults`.
FAULT, AT_NODE, AT_BYTE, FAULT_COLUMNS = range(4)
# The first axis of `found`. A node of -1: the message does not have the field. VALUE: a number, or the start of bytes.
NODE, VALUE, LENGTH, FOUND_ROWS = range(4)

# Numba compiles code with enums slowly, so the loops use these numbers.
_BOOLEAN, _INT, _LONG, _FLOAT, _DOUBLE = (int(k) for k in list(AvroKind)[1:6])
_BYTES, _STRING, _FIXED, _ENUM, _UNION, _ARRAY, _MAP, _RECORD = (int(k) for k in list(AvroKind)[6:])
_TRUNCATED, _BAD_NUMBER, _BAD_BOOLEAN, _BAD_LENGTH, _BAD_UTF8 = (int(f) for f in list(AvroFault)[1:6])
_BAD_ENUM, _BAD_UNION, _BAD_COUNT, _TOO_DEEP, _TRAILING, _TOO_MANY_STEPS, _TOO_MANY_EMPTY = (
    int(f) for f in list(AvroFault)[6:]
)


@compiled
def _number(data: Array, position: Int, end: Int, max_bytes: Int) -> tuple[Int, Int]:
    """Return the zigzag varint at `position` and the position after it. A negative position is a fault."""
    value = np.uint64(0)
    shift = np.uint64(0)
    stop = min(end, position + max_bytes)
    while position < stop:
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            # The tenth byte of a long, and the fifth of an int, have unused bits that must not be set.
            if (shift == 63 and byte > 1) or (shift == 28 and max_bytes == 5 and byte > 15):
                return np.int64(0), np.int64(-_BAD_NUMBER)
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), np.int64(-_TRUNCATED if shift < 7 * max_bytes else -_BAD_NUMBER)


@compiled
def is_utf8(data: Array, position: Int, end: Int) -> bool:
    """Return whether bytes are UTF-8 by the Unicode standard: without surrogates and overlong forms."""
    every = np.uint8(0)
    for i in range(position, end):
        every |= data[np.uint64(i)]
    if every < 0x80:
        return True
    while position < end:
        byte = data[np.uint64(position)]
        if byte < 0x80:
            position += 1
            continue
        more, low, high = _sequence(byte)
        if more == 0 or end - position <= more:
            return False
        for i in range(1, more + 1):
            following = data[np.uint64(position + i)]
            if following < low or following > high:
                return False
            low, high = 0x80, 0xBF
        position += 1 + more
    return True


@compiled
def _sequence(byte: Int) -> tuple[Int, Int, Int]:
    """Return how many bytes follow the first byte of a UTF-8 sequence (0: not one), and the range of the next byte."""
    if 0xC2 <= byte <= 0xDF:
        return 1, 0x80, 0xBF
    if 0xE0 <= byte <= 0xEF:
        return 2, 0xA0 if byte == 0xE0 else 0x80, 0x9F if byte == 0xED else 0xBF
    if 0xF0 <= byte <= 0xF4:
        return 3, 0x90 if byte == 0xF0 else 0x80, 0x8F if byte == 0xF4 else 0xBF
    return 0, 0, 0


@compiled
def _sized(data: Array, position: Int, end: Int, text: bool) -> tuple[Int, Int]:
    """Return start and length of bytes or a string; a negative start is a fault."""
    length, start = _number(data, position, end, 10)
    if start < 0:
        return start, np.int64(0)
    if length < 0:
        return np.int64(-_BAD_LENGTH), np.int64(0)
    if length > end - start:
        return np.int64(-_TRUNCATED), np.int64(0)
    if text and not is_utf8(data, start, start + length):
        return np.int64(-_BAD_UTF8), np.int64(0)
    return start, length


@compiled
def _little_endian(data: Array, position: Int, size: Int) -> Int:
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[np.uint64(position + i)]) << np.uint64(8 * i)
    return np.int64(value)


@compiled
def _fixed_size(kind: Int, arg: Int) -> Int:
    """Return the encoded size of a node's value; -1 if it depends on the message."""
    if kind == 0:
        return 0
    if kind == _BOOLEAN:
        return 1
    if kind == _FLOAT:
        return 4
    if kind == _DOUBLE:
        return 8
    return arg if kind == _FIXED else -1


@compiled
def _scalar(data: Array, position: Int, end: Int, kind: Int, arg: Int) -> tuple[Int, Int, Int]:
    """Return the position after a value, the value to store, and its length; a negative position is a fault."""
    size = _fixed_size(kind, arg)
    if size >= 0:
        if size > end - position:
            return np.int64(-_TRUNCATED), np.int64(0), np.int64(0)
        if kind == _FIXED:
            return position + size, position, size
        value = _little_endian(data, position, size)
        if kind == _BOOLEAN and value > 1:
            return np.int64(-_BAD_BOOLEAN), np.int64(0), np.int64(0)
        return position + size, value, size
    if kind >= _BYTES and kind <= _STRING:
        start, length = _sized(data, position, end, kind == _STRING)
        return (start + length if start >= 0 else start), start, length
    value, position = _number(data, position, end, 10 if kind == _LONG else 5)
    if position >= 0 and kind == _ENUM and not 0 <= value < arg:
        position = np.int64(-_BAD_ENUM)
    return position, value, np.int64(0)


@compiled
def _block(data: Array, position: Int, end: Int, min_bytes: Int, empty_left: Array) -> tuple[Int, Int]:
    """Return the number of items of the block at `position`, and the position after it; a negative one is a fault.

    `empty_left`: how many more items without bytes the message may have.
    """
    count, position = _number(data, position, end, 10)
    if position >= 0 and count < 0:  # the block's size in bytes follows, for readers that skip blocks
        count = -count
        _, position = _number(data, position, end, 10)
    if position < 0:
        return np.int64(0), position
    if count < 0 or (min_bytes > 0 and count > (end - position) // min_bytes):  # the smallest int64 negated is itself
        return np.int64(0), np.int64(-_BAD_COUNT)
    if min_bytes == 0:
        if count > empty_left[0]:
            return np.int64(0), np.int64(-_TOO_MANY_EMPTY)
        empty_left[0] -= count
    return count, position


@compiled
def _next(
    data: Array, position: Int, end: Int, program: Array, children: Array, stack: Array, depth: Int, empty_left: Array
) -> tuple[Int, Int, Int]:
    """Return the next node to read, the position and the depth.

    A node of -1: the message is complete, or, with a negative position, has a fault. `stack`: for each record its node
    and the number of fields read; for each array or map its node and the number of items left in the block.
    """
    while depth > 0:
        top = depth - 1
        node = stack[0, top]
        first = program[FIRST, node]
        if program[KIND, node] == _RECORD:
            done = stack[1, top]
            if done < program[COUNT, node]:
                stack[1, top] = done + 1
                return np.int64(children[first + done]), position, depth
            depth = top
            continue
        is_map = program[KIND, node] == _MAP
        item = np.int64(children[first])
        if stack[1, top] == 0:
            min_bytes = program[MIN_BYTES, item] + (1 if is_map else 0)
            stack[1, top], position = _block(data, position, end, min_bytes, empty_left)
            if position < 0:
                return np.int64(-1), position, depth
            if stack[1, top] == 0:
                depth = top
                continue
        stack[1, top] -= 1
        if is_map:
            start, length = _sized(data, position, end, True)
            if start < 0:
                return np.int64(-1), start, depth
            position = start + length
        return item, position, depth
    return np.int64(-1), position, depth


@compiled
def _read(
    data: Array, position: Int, end: Int, program: Array, children: Array, found: Array, row: Int, node: Int
) -> tuple[Int, Int]:
    """Read a scalar or a union's index at `position`. Return the position after it, and the branch's node, else -1."""
    if program[KIND, node] == _UNION:
        branch, position = _number(data, position, end, 10)
        if position >= 0 and not 0 <= branch < program[COUNT, node]:
            position = np.int64(-_BAD_UNION)
        return position, np.int64(children[program[FIRST, node] + branch]) if position >= 0 else np.int64(-1)
    position, value, length = _scalar(data, position, end, program[KIND, node], program[ARG, node])
    slot = program[SLOT, node]
    if slot >= 0 and position >= 0:
        found[NODE, slot, row] = node
        found[VALUE, slot, row] = value
        found[LENGTH, slot, row] = length
    return position, np.int64(-1)


@compiled
def _walk_one(
    data: Array,
    position: Int,
    end: Int,
    program: Array,
    children: Array,
    stack: Array,
    steps: Int,
    empty_left: Array,
    found: Array,
    row: Int,
) -> tuple[Int, Int, Int]:
    """Walk one message of at most `steps` steps. Return the number of its fault, 0 for none, with node and position."""
    node, depth = np.int64(0), 0
    while node >= 0:
        at, at_node = position, node
        if steps == 0:
            return np.int64(_TOO_MANY_STEPS), node, at
        steps -= 1
        if program[KIND, node] >= _ARRAY:
            if depth == stack.shape[1]:
                return np.int64(_TOO_DEEP), node, at
            stack[0, depth] = node
            stack[1, depth] = 0
            depth += 1
        else:
            position, branch = _read(data, position, end, program, children, found, row, node)
            if branch >= 0:
                node = branch
                continue
        if position >= 0:
            at = position
            node, position, depth = _next(data, position, end, program, children, stack, depth, empty_left)
            if position < 0:
                at_node = stack[0, depth - 1]
        if position < 0:
            return -position, at_node, at
    if position < end:
        return np.int64(_TRAILING), np.int64(0), position
    return np.int64(0), np.int64(0), position


@compiled
def walk(
    data: Array,
    starts: Array,
    ends: Array,
    program: Array,
    children: Array,
    limits: Array,
    found: Array,
    faults: Array,
) -> None:
    """Walk each message `data[starts[i]:ends[i]]` along the program, whose root is node 0.

    Fill `found`, of shape (FOUND_ROWS, slots, messages), and `faults`, of shape (messages, FAULT_COLUMNS). Positions
    are indices of `data`.
    """
    stack = np.empty((2, limits[DEPTH]), np.int64)
    empty_left = np.empty(1, np.int64)
    found[NODE] = -1
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        empty_left[0] = limits[EMPTY_ITEMS]
        steps = FREE_STEPS + limits[STEPS_PER_BYTE] * (end - start)
        fault, node, position = _walk_one(data, start, end, program, children, stack, steps, empty_left, found, row)
        faults[row, FAULT] = fault
        faults[row, AT_NODE] = node
        faults[row, AT_BYTE] = position
