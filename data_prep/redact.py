"""Secrets out of text: one place for everything that leaves the process (logs, requests, manifests, plans, bundles).

Goes by value, since what a secret is called is not always beside it: tokens of known shape (Hugging Face, GitHub, AWS,
Google, MLflow's and Ray's bearer tokens), user names and passwords in addresses, and, wherever they appear, the values
of this process's environment variables whose names speak of a secret. In `NAME=value` and `name: value` pairs whose
name does so, the value goes whatever its shape. What is replaced is told by `[redacted]`; the rest is left as it is.

A secret of no known shape, in no variable and under no telling name, cannot be known: keep those out of files.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[redacted]"
SHORTEST = 8  # a shorter value of a variable may be a word of any text

_NAMES = r"TOKEN(?!S|IZ)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTHORIZATION"
_NAME = re.compile(_NAMES, re.IGNORECASE)
# variables that only say where a secret is, or how it is asked for
_NO_SECRET = re.compile(
    r"(_PATH|_FILE|_DIR|_MODE|_URL|_URI|_ENDPOINT|KeyRef|Secret_?Name)$|^TOKENIZERS_", re.IGNORECASE
)

_SHAPES = (
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),  # Hugging Face
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),  # AWS, of a key's name
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}"),  # Google
    re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),  # Slack
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # a signed JSON token
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]+@")  # its user information
_QUERY = re.compile(
    r"([?&](?:X-Amz-Signature|X-Amz-Security-Token|sig|signature|token|access_token|api_key)=)[^&\s'\"]+", re.IGNORECASE
)
# NAME=value, "name": "value", name: value; what an earlier rule replaced is left
_PAIR = re.compile(
    rf"""(?P<name>["']?\b[A-Za-z0-9_.-]*(?:{_NAMES})[A-Za-z0-9_]*["']?\s*[=:]\s*)"""
    rf"""(?P<value>"[^"\n]*"|'[^'\n]*'|(?!{re.escape(MASK)}|Bearer\b|Basic\b)[^\s,;&'"{{}}\[\]]+)""",
    re.IGNORECASE,
)
# No value (or the mark of a list's item), a number, or what a shell puts there
_HARMLESS = re.compile(
    r"""^["']?(?:null|none|true|false|-|\d{1,7}|\$\([^\n]*\)|\$\{?(?-i:[A-Z_][A-Z0-9_]*)\}?|)["']?$""", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or a key of this name holds a secret."""
    return _NAME.search(name) is not None and _NO_SECRET.search(name) is None


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets. `environment`: whose values are secret too where their names say so (this process's
    where None)."""
    for value in _values(os.environ if environment is None else environment):
        text = text.replace(value, MASK)
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    text = _ADDRESS.sub(rf"\1{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _BEARER.sub(rf"\1\2{MASK}", text)
    return _PAIR.sub(_pair, text)


def _values(environment: Mapping[str, str]) -> Iterable[str]:
    """The longest first, since one may be a part of another."""
    found = {value for name, value in environment.items() if is_secret_name(name) and len(value) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def _pair(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    bare = name.rstrip("=: \t\r\n").strip("\"'")
    if not is_secret_name(bare) or _HARMLESS.match(value):
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{quote}{MASK}{quote}"


def redacted(tree: Any, environment: Mapping[str, str] | None = None) -> Any:
    """Plain data without secrets: every text in it redacted, and what stands under a telling key replaced."""
    if isinstance(tree, Mapping):
        return {key: MASK if _is_hidden(key, value) else redacted(value, environment) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [redacted(item, environment) for item in tree]
    return redact(tree, environment) if isinstance(tree, str) else tree


def _is_hidden(key: Any, value: Any) -> bool:
    """A text under a key that names a secret; lists of names (`secrets: [HF_TOKEN]`) are none."""
    return isinstance(key, str) and isinstance(value, str) and value != "" and is_secret_name(key)
