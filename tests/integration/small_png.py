"""Pictures of pages as small PNG files: pages have few colours, so one byte for each pixel is enough."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_COLOURS = 32


def small_png(width: int, height: int, rgba: bytes) -> bytes:
    """Return a PNG with the most important colours of a picture. Others, at edges of letters, become the nearest."""
    pixels = np.frombuffer(rgba, np.uint8).reshape(-1, 4)[:, :3].astype(np.int32)
    colours, places, counts = np.unique(pixels @ (65_536, 256, 1), return_inverse=True, return_counts=True)
    kept = _important(colours, counts)
    nearest = np.square(_channels(colours)[:, None] - _channels(kept)[None]).sum(axis=2).argmin(axis=1)
    rows = nearest[places].astype(np.uint8).reshape(height, width)
    data = np.hstack([np.zeros((height, 1), np.uint8), rows]).tobytes()  # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = _channels(kept).astype(np.uint8).tobytes()
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _important(
    colours: np.ndarray[tuple[int], np.dtype[np.int64]], counts: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return colours, the most frequent one first: without the next one, the picture would be most wrong."""
    channels, chosen = _channels(colours), [int(counts.argmax())]
    errors = np.square(channels - channels[chosen[0]]).sum(axis=1)
    while len(chosen) < min(_COLOURS, len(colours)):
        chosen.append(int((errors * counts).argmax()))
        errors = np.minimum(errors, np.square(channels - channels[chosen[-1]]).sum(axis=1))
    return colours[chosen]


def _channels(colours: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
