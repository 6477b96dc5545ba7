"""The HTTP client that huggingface_hub is to use while folders are pushed.

It gives up on a hub that says nothing for long, and on one that asks for a longer wait than a command should sit
through: the library's own client would do neither.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 300.0  # seconds that one answer may ask for; beyond it the user is told to come back
_SILENCE = 600.0  # seconds without a byte; the hub works for long on a large commit
_CONNECT = 30.0


@contextmanager
def patient_client() -> Iterator[None]:
    """While the block runs, every request of huggingface_hub goes this way."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    set_client_factory(_client)
    try:
        yield
    finally:
        set_client_factory(_http.default_client_factory)


def retry_after(headers: Any) -> float | None:
    """Seconds that a hub asks for, in either of its headers."""
    said = str(headers.get("Retry-After", "")).strip()
    if said.isdigit():
        return float(said)
    limits = {}
    for part in str(headers.get("RateLimit", "")).split(";"):
        name, _, value = part.strip().partition("=")
        limits[name] = value
    spent = limits.get("r") == "0" and limits.get("t", "").isdigit()
    return float(limits["t"]) if spent else None


def _client() -> Any:
    import httpx2
    from huggingface_hub.utils import _http

    return httpx2.Client(
        event_hooks={"request": [_http.hf_request_event_hook], "response": [_refuse_long_waits]},
        follow_redirects=True,
        timeout=httpx2.Timeout(_SILENCE, connect=_CONNECT),
    )


def _refuse_long_waits(response: Any) -> None:
    from huggingface_hub.utils._http import hf_raise_for_status

    if response.status_code < 429 or (retry_after(response.headers) or 0.0) <= LONGEST:
        return
    response.read()
    hf_raise_for_status(response)
