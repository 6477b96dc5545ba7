"""What a hub refuses, or cannot do now: the sentence, the exit code, and how often and how long it is asked again."""

from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import ElectraError, PreflightError, UploadError
from pipeline.console import Console
from pipeline.hub_push import push_folder
from tests.pipeline.hub_exports import write_model
from tests.pipeline.hub_server import TOKEN, Hub

AGAIN = "run the same command again: what is there already is not sent twice"
COMMIT = "POST /api/models/me/small/commit/main"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def push(folder: Path, repository: str = "me/small", *, public: bool = False) -> dict[str, Any]:
    return push_folder(folder, repository, Console(), public=public)


def refused(folder: Path, repository: str = "me/small", *, public: bool = False) -> ElectraError:
    with pytest.raises(ElectraError) as caught:
        push(folder, repository, public=public)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    return caught.value


# request, status and the Hub's words and code; the sentence, {hub} in it
REFUSALS = {
    "card": (
        ("POST /api/validate-yaml", 400, '"license" must be a string', None),
        '{hub} cannot use what was sent to me/small (it says: "license" must be a string); correct it',
    ),
    "401": (
        ("POST /api/repos/create", 401, "Invalid credentials in Authorization header", None),
        "{hub} does not accept the token, or there is none: run `hf auth login`, or set HF_TOKEN",
    ),
    "401 later": (
        (COMMIT, 401, "Invalid username or password.", None),
        "{hub} does not accept the token, or there is none: run `hf auth login`, or set HF_TOKEN",
    ),
    "403": (
        ("POST /api/models/me/small/preupload", 403, "Private repository storage limit reached", None),
        "{hub} gives this token no right to write to me/small (it says: Private repository storage limit reached); use",
    ),
    "404": (
        (COMMIT, 404, "Repository not found", "RepoNotFound"),
        "me/small does not exist on {hub}, or is hidden from this token: check the name",
    ),
    "409": (
        (COMMIT, 409, "A conflicting operation is in progress", None),
        f"me/small is being changed by someone else, or exists as something that is no model; {AGAIN}",
    ),
    "412": (
        (COMMIT, 412, "A commit has happened since. Please refresh and try again.", None),
        f"me/small has changed while it was written to, 6 times in a row; {AGAIN}",
    ),
    "413": (
        ("PUT /large/", 413, "Your proposed upload exceeds the maximum allowed size", None),
        "{hub} finds a file too large for me/small: export with `--dtype bf16`, or ask for more storage",
    ),
    "gated": (
        ("GET /api/models/me/small", 403, "Access to model me/small is restricted.", "GatedRepo"),
        f"me/small is gated on {{hub}}: ask its owner for access on its page, then {AGAIN}",
    ),
    "402": (
        ("POST /api/repos/create", 402, "Payment required", None),
        f"{{hub}} refuses (HTTP 402) (it says: Payment required); {AGAIN}",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_a_sentence_and_8(hub: Hub, folder: Path, case: str, waits: list[float]) -> None:
    (request, status, words, code), sentence = REFUSALS[case]
    fault = hub.fail(request, status, words, code=code)
    error = refused(folder)
    assert isinstance(error, UploadError) and error.exit_code == 8
    assert str(error).startswith(sentence.format(hub=hub.endpoint))
    assert 10**9 - fault.times == (6 if case == "412" else 1)  # of asking again nothing would come
    assert waits == []


def test_the_hub_says_of_its_own_who_may_not_write(hub: Hub, folder: Path) -> None:
    """Another's name, a token that is none, a file that its store does not take; no fault is scripted."""
    assert "gives this token no right to write to other/small (it says: You don't have the" in str(
        refused(folder, "other/small")
    )
    hub.store.create("other/open", private=False)
    assert "no right to write to other/open" in str(refused(folder, "other/open", public=True))
    hub.store.repositories["other/open"].gated = True
    assert "no right to write to other/open" in str(refused(folder, "other/open", public=True))
    del hub.store.tokens[TOKEN]
    assert "does not accept the token" in str(refused(folder))


def test_a_secret_in_the_hubs_words_is_not_shown(hub: Hub, folder: Path) -> None:
    hub.fail(COMMIT, 403, f"the token {TOKEN} may not")
    assert "(it says: the token [redacted] may not)" in str(refused(folder))


@pytest.mark.parametrize(
    "request_", ["POST /api/repos/create", "GET /api/models/me/small", "POST /api/models/me/small/preupload", COMMIT]
)
def test_asked_too_often_it_waits_as_long_as_it_is_told(
    hub: Hub, folder: Path, waits: list[float], request_: str
) -> None:
    fault = hub.fail(request_, 429, "Too many", headers={"Retry-After": "7"}, times=2)
    push(folder)
    assert fault.times == 0
    assert len(waits) == 2 and all(7 <= wait <= 8 for wait in waits)  # the library adds one to what it is told
    assert "model.safetensors" in hub.store.repositories["me/small"].head("main").files


def test_the_hubs_own_header_is_heard_too(hub: Hub, folder: Path, waits: list[float]) -> None:
    hub.fail(COMMIT, 429, "Too many", headers={"RateLimit": '"api";r=0;t=55'}, times=1)
    push(folder)
    assert waits == [55.0]


@pytest.mark.parametrize("request_", [COMMIT, "POST /api/models/me/small/preupload", "PUT /large/"])
def test_a_wait_longer_than_a_command_should_take_is_told(
    hub: Hub, folder: Path, waits: list[float], request_: str
) -> None:
    fault = hub.fail(request_, 429, "Too many", headers={"Retry-After": "3600"})
    error = refused(folder)
    assert str(error) == f"{hub.endpoint} is asked too often; wait 3600 s and {AGAIN}"
    assert (error.exit_code, waits, 10**9 - fault.times) == (3, [], 1)


@pytest.mark.parametrize("request_", [COMMIT, "PUT /large/"])
@pytest.mark.parametrize("status", [500, 503, None])
def test_a_fault_of_the_hub_is_waited_out(
    hub: Hub, folder: Path, waits: list[float], request_: str, status: int | None
) -> None:
    """Ever longer; None: it hangs up."""
    hub.fail(request_, status, "upstream", times=3)
    push(folder)
    assert waits == [1, 2, 4]
    assert hub.store.read("me/small", "model.safetensors") == (folder / "model.safetensors").read_bytes()


def test_a_fault_that_stays_is_told(hub: Hub, folder: Path, waits: list[float]) -> None:
    hub.fail(COMMIT, 502, "<html>bad gateway</html>")
    error = refused(folder)
    assert str(error) == f"{hub.endpoint} has a fault of its own (HTTP 502); {AGAIN}"
    assert error.exit_code == 3
    assert waits == [1, 2, 4, 8, 16]


def test_a_commit_whose_answer_was_lost_is_found(hub: Hub, folder: Path) -> None:
    """It is there once, not twice."""
    hub.fail(COMMIT, None, times=1, lost=True)
    (sent,) = push(folder)["sent"]
    repository = hub.store.repositories["me/small"]
    assert [commit.title for commit in repository.commits.values()] == ["initial commit", "Step 100"]
    assert repository.branches["main"] == sent["commit"]


def test_no_network_is_told(hub: Hub, folder: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.close()
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint.replace("http://", "http://user:word@"))
    error = refused(folder)
    place = hub.endpoint.replace("http://", "http://[redacted]@")
    assert str(error) == f"{place} is out of reach: check the network, or HF_ENDPOINT; {AGAIN}"
    assert error.exit_code == 3


def test_what_is_no_hub_is_told(hub: Hub, folder: Path, waits: list[float]) -> None:
    hub.fail("POST /api/validate-yaml", 200, "<html>", raw=b"<html>Sign in to the airport's network</html>")
    assert "answers with something that is no hub's answer: check HF_ENDPOINT" in str(refused(folder))


def test_without_a_network_or_a_token_nothing_is_asked(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UploadError, match="there is no token for http"):
        push(folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PreflightError, match="HF_HUB_OFFLINE is set, so nothing was sent"):
        push(folder)
    assert hub.asked == []
