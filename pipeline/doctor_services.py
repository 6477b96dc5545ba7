"""What `electra doctor` sees of MLflow and of the Hugging Face Hub: whether they answer, and what they let us do.

Neither is needed to train, so that one out of reach is a warning; credentials that are refused are an error. What is
written is one tag of an MLflow experiment that is there already. No credential is ever shown.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

from data_prep.redact import redact
from pipeline import tracking_cursor, tracking_errors
from pipeline.doctor_finding import Finding, error, ok, warning
from pipeline.experiment import Experiment
from pipeline.mlflow_store import quick_to_fail
from pipeline.tracking import TRACKING_URI

CHECKED = "electra.doctor"  # the tag
_LOGIN = "run `hf auth login`, or set HF_TOKEN"


# --- MLflow -----------------------------------------------------------------------------------------------------------


def mlflow(experiment: Experiment | None) -> Iterator[Finding]:
    """The store that MLFLOW_TRACKING_URI names."""
    uri = os.environ.get(TRACKING_URI)
    if uri is None:
        yield ok("mlflow", f"{TRACKING_URI} is not set: metrics go to mlflow.db in the experiment's folder")
        return
    public = tracking_cursor.public(uri)
    if "://" not in uri or uri.startswith("file:"):
        said = f"{public} is a folder, which MLflow no longer takes"
        yield error("mlflow", said, "set it to sqlite:///…/mlflow.db, to a server's address, or unset it")
        return
    try:
        with quick_to_fail():
            said = _rights(uri, experiment.name if experiment is not None else None)
    except tracking_errors.errors() as refused:
        sentence = tracking_errors.sentence(refused)
        what, _, remedy = sentence.partition(": ")
        if "401" in what or "403" in what:
            yield error("mlflow", f"{public}: {what}", remedy)
        else:
            later = "start it; training goes on without, and `electra sync` sends what it lacks"
            yield warning("mlflow", f"{public}: {sentence}", later)
        return
    yield ok("mlflow", f"{public}: {said}")


def _rights(uri: str, name: str | None) -> str:
    """What may be done there. Raises what MLflow raises."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    if name is None:
        client.search_experiments(max_results=1)
        return "answers, and may be read"
    found = client.get_experiment_by_name(name)
    if found is None:
        client.search_experiments(max_results=1)
        return f"answers, and may be read; {name} is not there yet"
    client.set_experiment_tag(found.experiment_id, CHECKED, f"{time.time():.0f}")
    return f"answers, and {name} may be written to"


# --- Hub --------------------------------------------------------------------------------------------------------------


def hub() -> Iterator[Finding]:
    """The hub that HF_ENDPOINT names, and what its token may do."""
    from huggingface_hub import HfApi, constants, get_token

    if constants.is_offline_mode():
        yield ok("hub", "HF_HUB_OFFLINE is set: nothing is fetched or sent")
        return
    where, token = constants.ENDPOINT, get_token()
    if (silent := _silent(where)) is not None:
        remedy = "check the network, or HF_ENDPOINT; HF_HUB_OFFLINE=1 where there is none"
        yield warning("hub", f"{redact(where)} is out of reach ({silent}); only push and gated data need it", remedy)
        return
    if token is None:
        yield warning("hub", f"{redact(where)} answers, and there is no token", f"for push and gated data, {_LOGIN}")
        return
    try:
        found = HfApi().whoami(token)
    except Exception as refused:
        yield _refused(where, refused)
        return
    yield _rights_of(where, found)


def _silent(where: str) -> str | None:
    """Why nobody answers there; None where somebody does. The hub's client itself would wait for long."""
    import httpx2

    try:
        httpx2.head(f"{where}/api/whoami-v2", timeout=5.0, follow_redirects=False)
    except httpx2.HTTPError as refused:
        return (str(refused).splitlines() or [type(refused).__name__])[0] or type(refused).__name__
    return None


def _refused(where: str, refused: Exception) -> Finding:
    from pipeline.hub_errors import status_of

    code = status_of(refused)
    if code in (401, 403):
        return error("hub", f"{redact(where)} does not accept the token ({code})", _LOGIN)
    reason = f"HTTP {code}" if code is not None else type(refused).__name__
    return warning("hub", f"{redact(where)} cannot tell whose the token is ({reason})", "try again later")


def _rights_of(where: str, found: dict[str, Any]) -> Finding:
    access = (found.get("auth") or {}).get("accessToken") or {}
    role, who = str(access.get("role", "unknown")), str(found.get("name", "somebody"))
    said = f"{redact(where)}: the token is {who}'s, with the role {role}"
    if role == "fineGrained":
        scopes = access.get("fineGrained") or {}
        owners = [scope["entity"].get("name", "?") for scope in scopes.get("scoped", []) if _writes(scope)]
        if owners:
            return ok("hub", f"{said}, which may write to {', '.join(owners)}")
    elif role in ("write", "admin"):
        return ok("hub", said)
    elif role == "unknown":
        return ok("hub", f"{redact(where)}: the token is {who}'s; its rights are not told")
    return warning("hub", f"{said}, which may not write", "for push, make a token with write access")


def _writes(scope: dict[str, Any]) -> bool:
    return any(str(one).endswith(("repo.write", "repo.content.write")) for one in scope.get("permissions", []))
