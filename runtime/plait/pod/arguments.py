"""Kinds of values on the command lines of this room."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """A whole number of at least 0."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def seconds(text: str) -> float:
    """A finite number of seconds of at least 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a finite time of at least 0 s")
    return number
