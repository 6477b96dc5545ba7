"""What an MLflow store or server that does not work raises, as half a sentence that says what to do about it.

No sentence holds an address, a password or a token: what a server answered is repeated only where it is of no known
kind, and then without what stands before an @.
"""

import re

_STATUS = re.compile(r"failed with error code (\d{3})|too many (\d{3}) error responses")
# By what an error's text holds; the first that fits.
_KINDS = (
    (r"timed? ?out", "it gives no answer in time"),
    (r"Connection refused|Errno 111", "nobody answers at that address"),
    (r"NameResolutionError|Name or service not known|nodename nor servname|getaddrinfo", "there is no such host"),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError", "its certificate cannot be verified (MLFLOW_TRACKING_SERVER_CERT_PATH)"),
    (r"Connection aborted|Connection reset|RemoteDisconnected|IncompleteRead", "it broke the connection off"),
)
_CREDENTIALS = "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


def errors() -> tuple[type[Exception], ...]:
    """What a store or server raises; MLflow lets some of its database's errors through."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError)


def sentence(error: Exception) -> str:
    """What is wrong, short: "it gives no answer in time"."""
    text = str(error)
    if found := _STATUS.search(text):
        return _of_status(int(found.group(1) or found.group(2)))
    if status := _refusal(error):
        return _of_status(status)
    for pattern, words in _KINDS:
        if re.search(pattern, text):
            return words
    return _first_line(error)


def _refusal(error: Exception) -> int | None:
    """The status behind an answer that is JSON, of which MLflow keeps the name alone."""
    names = {"UNAUTHENTICATED": 401, "CUSTOMER_UNAUTHORIZED": 401, "PERMISSION_DENIED": 403}
    return names.get(str(getattr(error, "error_code", "")))


def _of_status(status: int) -> str:
    if status == 401:
        return f"it does not accept the credentials (401): set {_CREDENTIALS}"
    if status == 403:
        return f"it does not allow this with these credentials (403): ask for the right to write, or set {_CREDENTIALS}"
    if status == 404:
        return "there is no MLflow at that address (404)"
    return f"it answers with errors ({status})"


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = re.sub(r"://[^/@\s]+@", "://", text.split(" with url: ")[0])
    return text if len(text) <= 200 else text[:199] + "…"
