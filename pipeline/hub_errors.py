"""What goes wrong with a hub, as the one sentence and the exit code a user gets; and what is worth asking again.

A refusal (401, 403, 404, 409, 412, 413, gated, a card it cannot read) is 8; a hub that is out of reach or not well is
3: the same command again goes on where this one stopped. `patiently` asks again on 429 and 5xx, and where the
connection broke, after as long as the hub says (Retry-After) or ever longer. Nothing that a hub answers is shown
unredacted.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from data_prep.errors import ElectraError, PreflightError, UploadError
from data_prep.redact import redact
from pipeline.hub_client import LONGEST, retry_after

T = TypeVar("T")
TRIES = 6
_BATCH = "LFS batch API returned errors:"  # how the library begins, where single files are refused
_AGAIN = "run the same command again: what is there already is not sent twice"

_REFUSALS = {
    400: "{hub} cannot use what was sent to {repository}{reason}; correct it and run the same command again",
    401: "{hub} does not accept the token, or there is none: run `hf auth login`, or set HF_TOKEN",
    403: "{hub} gives this token no right to write to {repository}{reason}; use a token with write access, or another "
    "owner's name",
    404: "{repository} does not exist on {hub}, or is hidden from this token: check the name, and the owner's spelling",
    409: "{repository} is being changed by someone else, or exists as something that is no model; {again}",
    412: "{repository} has changed while it was written to, {tries} times in a row; {again}",
    413: "{hub} finds a file too large for {repository}: export with `--dtype bf16`, or ask for more storage",
}


def patiently(
    hub: str, repository: str, call: Callable[[], T], *, tries: int = TRIES, say: Callable[[str], None] | None = None
) -> T:
    """What `call` gives. ElectraError with the sentence for whatever it raises that is the hub's; other errors as they
    are. `tries=1`: for calls that ask again themselves."""
    wait = 1.0
    for left in range(tries - 1, -1, -1):
        try:
            return call()
        except Exception as error:
            seconds = _worth_asking(error, wait)
            if seconds is None or seconds > LONGEST or left == 0:
                found = sentence(error, hub, repository)
                if found is None:
                    raise
                raise found from error
            if say is not None:
                say(f"push: {hub} is busy or out of reach; asking again in {seconds:.0f} s")
        time.sleep(seconds)
        wait *= 2
    raise AssertionError("the last try returns or raises")


def status_of(error: BaseException) -> int | None:
    """The status that a hub answered with, wherever in an error's causes; None where it did not answer."""
    return next((response.status_code for one in _causes(error) if (response := _response(one)) is not None), None)


def sentence(error: BaseException, hub: str, repository: str) -> ElectraError | None:
    """The error for the user; None for what is no matter of a hub."""
    import httpx2
    from huggingface_hub.errors import GatedRepoError, LocalTokenNotFoundError, OfflineModeIsEnabled

    causes = list(_causes(error))
    words = {"hub": hub, "repository": repository, "again": _AGAIN, "tries": TRIES}
    if any(isinstance(one, OfflineModeIsEnabled) for one in causes):
        return PreflightError(f"HF_HUB_OFFLINE is set, so nothing was sent to {hub}; unset it and {_AGAIN}")
    if any(isinstance(one, GatedRepoError) for one in causes):
        return UploadError(f"{repository} is gated on {hub}: ask its owner for access on its page, then {_AGAIN}")
    if any(isinstance(one, LocalTokenNotFoundError) for one in causes):
        return UploadError(_REFUSALS[401].format(**words))
    code = status_of(error)
    if code in _REFUSALS:
        return UploadError(_REFUSALS[code].format(**words, reason=_reason(causes)))
    if code == 429:
        return PreflightError(f"{hub} is asked too often; wait {_waiting(causes)} and {_AGAIN}")
    if code is not None and code >= 500:
        return PreflightError(f"{hub} has a fault of its own (HTTP {code}); {_AGAIN}")
    if code is not None:
        return UploadError(f"{hub} refuses (HTTP {code}){_reason(causes)}; {_AGAIN}")
    if any(isinstance(one, httpx2.TransportError | ConnectionError | TimeoutError) for one in causes):
        return PreflightError(f"{hub} is out of reach: check the network, or HF_ENDPOINT; {_AGAIN}")
    if refused := next((str(one) for one in causes if str(one).startswith(_BATCH)), None):
        return UploadError(
            f"{hub} does not take a file of {repository}{_in_brackets(refused[len(_BATCH) :])}; {_AGAIN}"
        )
    if any(isinstance(one, json.JSONDecodeError) for one in causes):
        return PreflightError(f"{hub} answers with something that is no hub's answer: check HF_ENDPOINT; {_AGAIN}")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _response(error: BaseException) -> Any:
    found = getattr(error, "response", None)
    return found if isinstance(getattr(found, "status_code", None), int) else None


def _worth_asking(error: BaseException, wait: float) -> float | None:
    """Seconds to wait before the next try; None where asking again changes nothing."""
    import httpx2

    causes = list(_causes(error))
    code = status_of(error)
    if code is not None:
        return max(wait, _retry_after(causes) or 0.0) if code == 429 or code >= 500 else None
    broken = (httpx2.TransportError, json.JSONDecodeError)
    return wait if any(isinstance(one, broken) for one in causes) else None


def _retry_after(causes: list[BaseException]) -> float | None:
    """Seconds that the hub asks for."""
    found = (retry_after(response.headers) for one in causes if (response := _response(one)) is not None)
    return next((seconds for seconds in found if seconds is not None), None)


def _waiting(causes: list[BaseException]) -> str:
    seconds = _retry_after(causes)
    return "a while" if seconds is None else f"{seconds:.0f} s"


def _reason(causes: list[BaseException]) -> str:
    """What the hub itself says, on one line, in brackets."""
    said = next((text for one in causes if (text := getattr(one, "server_message", None))), "")
    return _in_brackets(str(said))


def _in_brackets(said: str) -> str:
    line = " ".join(redact(said).split())[:200]
    return f" (it says: {line})" if line else ""
