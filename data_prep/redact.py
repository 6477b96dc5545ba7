"""Secrets out of text: one place for everything that leaves the process (logs, requests, manifests, plans, bundles).

Goes by value, since what a secret is called is not always beside it: tokens of known shape (Hugging Face, GitHub,
GitLab, AWS, Google, Slack, Docker's and NVIDIA's registries, signed JSON tokens, bearer tokens), private keys, user
names and passwords in addresses, and, wherever they appear, the values of this process's environment variables whose
names speak of a secret. In `NAME=value`, `name: value` and `--name value` pairs whose name does so, the value goes
whatever its shape. What is replaced is told by `[redacted]`; the rest is left as it is.

A secret of no known shape, in no variable and under no telling name, cannot be known: keep those out of files.
`is_clean` says whether a text would be left as it is.
"""

import base64
import binascii
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[redacted]"
SHORTEST = 8  # a shorter value of a variable may be a word of any text

_NAMES = (
    r"TOKEN(?!S|IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API[_-]?KEY|ACCESS[_-]?KEY|PRIVATE[_-]?KEY"
    r"|AUTHORIZATION|(?-i:_PASS|_PWD)(?![A-Za-z])"
)
_NAME = re.compile(_NAMES, re.IGNORECASE)
# variables that only say where a secret is, or how it is asked for
_NO_SECRET = re.compile(
    r"(_PATH|_FILE|_DIR|_MODE|_URL|_URI|_ENDPOINT|KeyRef|Secret_?Name)$|^TOKENIZERS_", re.IGNORECASE
)

_START = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"  # not within a word; an escape of an address is none
_SHAPES = (
    re.compile(_START + r"hf_[A-Za-z0-9]{20,}"),  # Hugging Face
    re.compile(_START + r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    # AWS, of a key's name, and of the key where it stands beside it
    re.compile(
        _START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])(?:[\s,:;|/\"']{1,4}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?"
    ),
    re.compile(_START + r"(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,})"),  # Google
    re.compile(_START + r"xox[abprs]-[A-Za-z0-9-]{10,}"),  # Slack
    re.compile(_START + r"(?:glpat-[A-Za-z0-9_-]{20,}|dckr_pat_[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{40,})"),
    re.compile(_START + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # a signed JSON token
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
# The user information of an address: up to the last @ before its path, or, as a password may hold a slash, from a colon
# that begins no port. One slash is what is left of two where an address was taken for a path.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(?:(//)[^/\s'\"]+@|(//?)[^/\s@:'\"]*:(?!\d+(?:/|$))[^\s@'\"]+@)")
_QUERY = re.compile(
    r"([?&](?:X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature|sig|signature|token|access_token|api_key)=)"
    r"[^&\s'\"]+",
    re.IGNORECASE,
)
_QUOTED = r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
# Up to what ends it for certain: a space, a quote, the next pair of an address or a list, or closing brackets
_BARE = (
    rf"\$\{{\w+\}}|\$\(\w+\)|(?!{re.escape(MASK)}|Bearer\b|Basic\b)[^\s'\"]+?"
    r"(?=[,;)}\]]*(?:\s|$)|[,;)}\]]*['\"]|[,;&][A-Za-z_][\w.%-]*[=:])"
)
# NAME=value, "name": "value", name: value (or a block below it); what an earlier rule replaced is left
_PAIR = re.compile(
    rf"""(?P<name>["']?\b[A-Za-z0-9_.-]*(?:{_NAMES})[A-Za-z0-9_]*["']?\s*[=:]\s*(?:[|>][+-]?\s+)?)"""
    rf"(?P<value>{_QUOTED}|{_BARE})",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rf"(?P<name>(?<!\S)--?[A-Za-z0-9_-]*(?:{_NAMES})[A-Za-z0-9_-]*\s+)(?P<value>{_QUOTED}|(?!-)\S{{{SHORTEST},}})",
    re.IGNORECASE,
)
# {name: HF_TOKEN, value: …}, as Kubernetes has variables
_NAMED = re.compile(
    rf"""(?P<name>\bname["']?\s*:\s*["']?(?P<own>[A-Za-z0-9_.-]*(?:{_NAMES})[A-Za-z0-9_-]*)["']?\s*,?\s*"""
    rf"""["']?\bvalue["']?\s*:\s*)(?P<value>{_QUOTED}|{_BARE})""",
    re.IGNORECASE,
)
# No value, the mark of a list's item, a bracket with more behind it, or a word that is no value
_HARMLESS = re.compile(r"""^["']?(?:null|none|true|false|-|…|[\[{]+[\]}]*|)["']?$""", re.IGNORECASE)
_COUNT = re.compile(r"^\[*[-+]?\d{1,7}(?:\.\d+)?(?:e[-+]?\d+)?$", re.IGNORECASE)  # of tokens, or a token's id
_WORD = re.compile(r"^[a-z]{1,12}$")
_REFERENCE = re.compile(r"""^["']?\$(?:\{([A-Z_][A-Z0-9_]*)\}|\(([A-Z_][A-Z0-9_]*)\)|([A-Z_][A-Z0-9_]*))["']?$""")


def is_secret_name(name: str) -> bool:
    """Whether a variable or a key of this name holds a secret."""
    return _NAME.search(name) is not None and _NO_SECRET.search(name) is None


def is_clean(text: str, environment: Mapping[str, str] | None = None) -> bool:
    """Whether no secret is seen in the text."""
    return redact(text, environment) == text


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets. `environment`: whose values are secret too where their names say so (this process's
    where None)."""
    for value in _values(os.environ if environment is None else environment):
        text = text.replace(value, MASK)
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    text = _ADDRESS.sub(lambda found: f"{found[1]}{found[2] or found[3]}{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _BEARER.sub(_header, text)
    for pattern in (_NAMED, _PAIR, _OPTION):
        text = pattern.sub(_pair, text)
    return text


def _values(environment: Mapping[str, str]) -> Iterable[str]:
    """The longest first, since one may be a part of another."""
    found = {value for name, value in environment.items() if is_secret_name(name) and len(value) >= SHORTEST}
    return sorted((value for value in found if not _is_place(value)), key=len, reverse=True)


def _is_place(value: str) -> bool:
    """A file that a variable of a telling name leads to: the file may hold a secret, its name is none."""
    return value.startswith(("/", "./", "~/")) and os.path.exists(os.path.expanduser(value))


def _header(found: re.Match[str]) -> str:
    """`Basic` is a word of any text where what follows is no user with a password."""
    if found[1].lower() == "basic" and not _is_basic(found[3]):
        return found[0]
    return f"{found[1]}{found[2]}{MASK}"


def _is_basic(text: str) -> bool:
    try:
        return b":" in base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def _pair(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    own = found.groupdict().get("own")
    bare = own or re.split(r"[=:\s]", name.strip("\"' "))[0].strip("\"'")
    # `that token: unknown key` is prose
    prose = own is None and name.endswith(": ") and _WORD.match(value) is not None and _is_count(bare)
    if not is_secret_name(bare) or prose or _is_harmless(bare, value):
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{quote}{MASK}{quote}"


def _is_harmless(name: str, value: str) -> bool:
    if _HARMLESS.match(value) or value.strip("\"'") == MASK:
        return True
    if name.lower().endswith("secrets") and value.startswith("["):  # a list of names, as `cluster.submit` has
        return True
    if (reference := _REFERENCE.match(value)) is not None:  # to a variable that speaks of a secret itself
        return is_secret_name(next(filter(None, reference.groups())))
    return _COUNT.match(value) is not None and _is_count(name)


def _is_count(name: str) -> bool:
    """Whether numbers under this name are counts or ids of tokens; those under other telling names are secrets."""
    return [found.upper() for found in _NAME.findall(name)] == ["TOKEN"]


def redacted(tree: Any, environment: Mapping[str, str] | None = None) -> Any:
    """Plain data without secrets: every text in it redacted, and what stands under a telling key replaced."""
    if isinstance(tree, Mapping):
        told = tree.get("name")
        hidden = isinstance(told, str) and is_secret_name(told)  # {name: HF_TOKEN, value: …}
        return {
            key: MASK if _is_hidden(key, value) or (hidden and key == "value") else redacted(value, environment)
            for key, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [redacted(item, environment) for item in tree]
    return redact(tree, environment) if isinstance(tree, str) else tree


def _is_hidden(key: Any, value: Any) -> bool:
    """A text or a number under a key that names a secret; lists of names (`secrets: [HF_TOKEN]`) are none."""
    if not isinstance(key, str) or not is_secret_name(key) or isinstance(value, bool):
        return False
    return (isinstance(value, str) and value != "") or (isinstance(value, int | float) and not _is_count(key))


# --- logging ----------------------------------------------------------------------------------------------------------


_TRACEBACKS = logging.Formatter()
_PROBE = "hf_" + 20 * "0"


def redact_logs() -> None:
    """From now on no record of `logging` in this process has a secret in its message or traceback, whoever logs it."""
    make = logging.getLogRecordFactory()
    if make("", 0, "", 0, _PROBE, (), None).getMessage() == _PROBE:  # others may have put theirs around ours since
        logging.setLogRecordFactory(lambda *args, **kwargs: _clean(make(*args, **kwargs)))


def _clean(record: logging.LogRecord) -> logging.LogRecord:
    try:
        message = record.getMessage()
    except Exception:  # arguments that do not fit, of which logging itself tells
        return record
    if (clean := redact(message)) != message:
        record.msg, record.args = clean, ()
    if record.exc_info is not None and record.exc_info[0] is not None:
        record.exc_text = redact(_TRACEBACKS.formatException(record.exc_info))  # what every formatter takes over
    return record
