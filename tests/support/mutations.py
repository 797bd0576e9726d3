"""Seeded damage to files: flipped bits; removed, inserted, moved or repeated bytes."""

import random
from collections.abc import Callable
from pathlib import Path

Mutation = Callable[[bytearray, random.Random], None]


def flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def overwrite(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    size = draw.choice((1, 4, 8, 16, 64))
    data[at : at + size] = draw.choice((bytes(size), b"\xff" * size, draw.randbytes(size)))[: len(data) - at]


def cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.choice((0, 1, 7, 8, 9, len(data) - 1, draw.randrange(len(data)))) :]


def insert(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.randbytes(draw.choice((1, 8, 64)))


def delete(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    del data[at : at + draw.choice((1, 8, 64))]


def swap(data: bytearray, draw: random.Random) -> None:
    size = draw.choice((1, 4, 8, 16, 64))
    one, two = draw.randrange(len(data)), draw.randrange(len(data))
    first, second = bytes(data[one : one + size]), bytes(data[two : two + size])
    size = min(len(first), len(second))
    data[one : one + size], data[two : two + size] = second[:size], first[:size]


def repeat(data: bytearray, draw: random.Random) -> None:
    at, size = draw.randrange(len(data)), draw.choice((1, 16, 64, 300))
    data[at:at] = data[at : at + size]


def swap_lines(data: bytearray, draw: random.Random) -> None:
    """For files of lines: two of them change places, or one is there twice, or one is missing."""
    lines = bytes(data).splitlines(keepends=True)
    one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
    how = draw.randrange(3)
    if how == 0:
        lines[one], lines[two] = lines[two], lines[one]
    elif how == 1:
        lines.insert(one, lines[two])
    else:
        del lines[one]
    data[:] = b"".join(lines)


MUTATIONS: list[Mutation] = [flip, flip, flip, overwrite, overwrite, cut, insert, delete, swap, repeat]


def mutate(path: Path, draw: random.Random, mutations: list[Mutation] = MUTATIONS) -> str:
    """Damage a file in place; returns what was done to it."""
    data = bytearray(path.read_bytes())
    mutation = draw.choice(mutations)
    if data:
        mutation(data, draw)
    path.write_bytes(data)
    return f"{mutation.__name__} in {path.name}"
