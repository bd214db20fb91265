"""Forms of text that Kubernetes accepts: names, images, quantities. Each check gives a reason, or None."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from plait_operator.names import LIMIT

INT32: Final = 2**31 - 1
"""Largest count that the API server takes."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[a-zA-Z0-9]+(?:[.-]+[a-zA-Z0-9]+)*(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?P<digest>@[a-zA-Z0-9]+:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_LONGEST_IMAGE = 512
_QUANTITY = re.compile(
    r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][-+]?\d{1,2})?", re.ASCII
)
_POWERS: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


def service_name(text: str) -> str | None:
    """Why `text` cannot name a Service (an RFC 1035 label), which a deployment's name has to."""
    if len(text) > LIMIT:
        return f"has {len(text)} characters, and a Service's name has at most {LIMIT}"
    if not _DNS_1035.fullmatch(text):
        return "must be small letters, digits and dashes, begin with a letter and not end with a dash"
    return None


def label(text: str) -> str | None:
    """Why `text` is no RFC 1123 label (names of containers and volumes)."""
    if len(text) > LIMIT or not _DNS_1123.fullmatch(text):
        return f"must be at most {LIMIT} small letters, digits and dashes, and neither begin nor end with one"
    return None


def object_name(text: str) -> str | None:
    """Why `text` cannot name a Secret, a claim or a priority class (an RFC 1123 subdomain)."""
    if len(text) > 253:
        return f"has {len(text)} characters, and an object's name has at most 253"
    if not _SUBDOMAIN.fullmatch(text):
        return "must be small letters, digits, dashes and dots, and begin and end with a letter or digit"
    return None


def data_key(text: str) -> str | None:
    """Why `text` cannot be a key of a Secret."""
    if len(text) > 253 or not _DATA_KEY.fullmatch(text) or text in (".", ".."):
        return "a Secret's key has letters, digits, dashes, underscores and dots only, 253 at most"
    return None


def qualified(text: str) -> str | None:
    """Why `text` cannot be the key of a label, an annotation or an extended resource (`domain/name`)."""
    domain, slash, name = text.rpartition("/")
    if slash and (object_name(domain) or not domain):
        return "what stands before the / must be a domain of small letters, digits, dashes and dots"
    if len(name) > LIMIT or not _QUALIFIED.fullmatch(name):
        return f"must be at most {LIMIT} letters, digits, - _ and ., with a letter or digit at both ends"
    return None


def label_value(text: str) -> str | None:
    """Why `text` cannot be a label's value."""
    if text and (len(text) > LIMIT or not _QUALIFIED.fullmatch(text)):
        return f"must be at most {LIMIT} letters, digits, - _ and ., with a letter or digit at both ends"
    return None


def variable(text: str) -> str | None:
    """Why `text` cannot name an environment variable."""
    return None if _VARIABLE.fullmatch(text) else "no name of an environment variable"


def image(text: str) -> str | None:
    """Why `text` is no reference of an image."""
    if len(text) > _LONGEST_IMAGE or not _IMAGE.fullmatch(text):
        return "not a reference of an image"
    return None


def image_tag(text: str) -> str | None:
    """The tag that an image's reference pulls: `latest` where it names neither tag nor digest, else None."""
    match = _IMAGE.fullmatch(text)
    if match is None or match["digest"]:
        return None
    return match["tag"] or "latest"


def quantity(value: object) -> Decimal | None:
    """What a quantity (`500m`, `64Gi`, 2) says, as a number; None when it is none, or negative."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    suffix = match["suffix"] or ""
    try:
        if suffix in _POWERS:
            return Decimal(match["number"]) * _POWERS[suffix]
        return Decimal(match["number"] + suffix)
    except InvalidOperation:
        return None
