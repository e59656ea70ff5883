"""Mutations of valid bytes."""

from collections.abc import Callable, Iterable

#: A change of the bytes: at a position, with a number of them, or with others.
Mutation = Callable[[bytes, int, int, bytes], bytes]
#: A mutation by its name, and its arguments.
Step = tuple[str, int, int, bytes]

MUTATIONS: dict[str, Mutation] = {
    "drop": lambda data, at, number, _: data[:at] + data[at + number :],
    "repeat": lambda data, at, number, _: data[: at + number] + data[at:],
    "swap": lambda data, at, n, _: (
        data[:at] + data[at + n : at + 2 * n] + data[at : at + n] + data[at + 2 * n :]
    ),
    "cut": lambda data, at, _number, _: data[:at],
    "insert": lambda data, at, _, other: data[:at] + other + data[at:],
    "overwrite": lambda data, at, _, other: data[:at] + other + data[at + len(other) :],
    "line": lambda data, at, _, other: _in_a_new_line(data, at, other),
}


def mutated(data: bytes, steps: Iterable[Step]) -> bytes:
    """The bytes after these mutations; positions wrap around."""
    for how, at, number, other in steps:
        data = MUTATIONS[how](data, at % (len(data) + 1), number, other)
    return data


def _in_a_new_line(data: bytes, at: int, other: bytes) -> bytes:
    end = data.find(b"\n", at) + 1
    return data[:end] + other + b"\r\n" + data[end:]
