"""Send exported folders to a hub that speaks the Hugging Face Hub's API (`HF_ENDPOINT` names another than the default).

Repositories are private unless told otherwise, and one that is public already is not written to by accident. Files that
are there are not sent again, so that the same command goes on after whatever stopped it. Every commit names the one it
follows; where somebody else has committed meanwhile, it is made anew on top of theirs. Branches of intermediate
checkpoints are listed in `revisions.json` on main, with step, tokens and FLOPs. The token is huggingface_hub's
(HF_TOKEN, or `hf auth login`); it is never an argument and never shown. Nothing on the hub is ever deleted.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import PreflightError, UploadError
from data_prep.redact import redact
from data_prep.storage import read_json
from pipeline.console import Console
from pipeline.hub_checkpoints import export_kept, is_run
from pipeline.hub_client import patient_client
from pipeline.hub_errors import TRIES, patiently, status_of
from pipeline.hub_folders import Sending, sendings

if TYPE_CHECKING:
    from huggingface_hub import HfApi

INDEX = "revisions.json"
_MIB = 2**20


def push_folder(
    folder: Path,
    repository: str,
    console: Console,
    *,
    public: bool = False,
    licence: str | None = None,
    revision: str | None = None,
    every: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Send what `folder` holds (`hub_folders.sendings`); of a run, with `every`, all its checkpoints, exported first.
    `dry_run`: say what would be sent, file by file, and reach nobody. Raises as those, and as `push`."""
    if every and is_run(folder):
        folder = export_kept(folder, console)
    found = sendings(folder, repository, revision=revision, every=every, licence=licence)
    if public and found[0].unlicensed:
        console.warn("the card states no licence of the weights, so that nobody may use them; say --license")
    return _listed(found, console, public=public) if dry_run else push(found, console, public=public)


def _listed(found: list[Sending], console: Console, *, public: bool) -> dict[str, Any]:
    for one in found:
        sizes = one.sizes()
        where = f"{one.repository}@{one.revision or 'main'} ({'public' if public else 'private'})"
        console.say(f"push: would send {len(sizes)} files, {sum(sizes.values()) / _MIB:,.1f} MiB, to {where}")
        for name, size in sizes.items():
            console.say(f"  {size:>14,}  {name}")
    return {"dry_run": True, "sent": [_record(one) for one in found]}


def push(found: list[Sending], console: Console, *, public: bool) -> dict[str, Any]:
    """Send everything. UploadError where the hub refuses, PreflightError where it is out of reach."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.set_verbosity_error()  # it would name addresses that are signed
    if not sys.stderr.isatty():
        disable_progress_bars()
    hub = redact(constants.ENDPOINT)
    if constants.is_offline_mode():
        raise PreflightError(f"HF_HUB_OFFLINE is set, so nothing was sent to {hub}; unset it and run the command again")
    if get_token() is None:
        raise UploadError(
            f"there is no token for {hub}: run `hf auth login`, or set HF_TOKEN, and run the command again"
        )
    pusher = _Pusher(HfApi(), hub, console, public)
    with patient_client():
        for name in dict.fromkeys(one.repository for one in found):
            pusher.prepare(name)
        sent = [_record(one) | {"commit": pusher.send(one)} for one in found]
        for name in dict.fromkeys(one.repository for one in found if one.revision is not None):
            pusher.write_index(name, {one["revision"]: one for one in sent if one["repository"] == name})
    return {"dry_run": False, "hub": hub, "sent": sent}


def _record(one: Sending) -> dict[str, Any]:
    return {
        "repository": one.repository,
        "revision": one.revision or "main",
        "files": one.sizes(),
        **{key: one.facts[key] for key in ("run", "step", "tokens", "flops") if key in one.facts},
    }


class _Pusher:
    """The calls, each with its patience and its sentences."""

    def __init__(self, api: "HfApi", hub: str, console: Console, public: bool) -> None:
        self._api, self._hub, self._console, self._public = api, hub, console, public

    def _ask(self, repository: str, call: Callable[[], Any], tries: int = TRIES) -> Any:
        return patiently(self._hub, repository, call, tries=tries, say=self._console.say)

    def prepare(self, repository: str) -> None:
        """The repository exists and is as private as it should be."""
        self._ask(repository, lambda: self._api.create_repo(repository, private=not self._public, exist_ok=True))
        info = self._ask(repository, lambda: self._api.model_info(repository))
        if not self._public and info.private is False:
            raise UploadError(f"{repository} is public already: say `--public` to publish there, or give another name")
        if self._public and info.private is True:
            self._console.warn(f"{repository} is there already and private, and stays so: change that on its page")

    def send(self, one: Sending) -> str:
        """The commit that holds the folder, a new one or, where nothing differs, the newest."""
        if one.revision is not None:
            branch = one.revision
            self._ask(one.repository, lambda: self._api.create_branch(one.repository, branch=branch, exist_ok=True))
        sizes = one.sizes()
        where = f"{one.repository}@{one.revision or 'main'}"
        self._console.say(f"push: {len(sizes)} files, {sum(sizes.values()) / _MIB:,.1f} MiB, to {where}")
        words = f"Step {one.facts['step']}" if "step" in one.facts else "Export"
        commit, is_new = self._commit(one.repository, one.revision, words, lambda _: one.files)
        place = f"{self._hub}/{one.repository}" + (f"/tree/{one.revision}" if one.revision else "")
        self._console.say(f"push: {place} {'is at' if is_new else 'had all of it:'} commit {commit[:12]}")
        return commit

    def write_index(self, repository: str, sent: dict[str, dict[str, Any]]) -> None:
        """Add branches to the list on main; what others have added stays."""
        entries = {
            name: {key: one[key] for key in ("run", "step", "tokens", "flops", "commit") if key in one}
            for name, one in sent.items()
            if name != "main"
        }

        def files(head: str) -> dict[str, Path | bytes]:
            merged = self._index(repository, head) | entries
            ordered = dict(sorted(merged.items(), key=lambda item: (item[1].get("step", 0), item[0])))
            return {INDEX: (json.dumps(ordered, indent=1) + "\n").encode()}

        self._commit(repository, None, "List the branches of checkpoints", files)

    def _index(self, repository: str, head: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = self._ask(repository, lambda: self._download(repository, head, folder))
            found = {} if path is None else read_json(Path(path))
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise UploadError(f"{repository}: its {INDEX} is no list of branches; correct or remove it there")
        return found

    def _download(self, repository: str, head: str, folder: str) -> str | None:
        from huggingface_hub.errors import EntryNotFoundError

        try:
            return self._api.hf_hub_download(repository, INDEX, revision=head, local_dir=folder)
        except EntryNotFoundError:
            return None

    def _commit(
        self,
        repository: str,
        revision: str | None,
        words: str,
        files: Callable[[str], dict[str, Path | bytes]],
    ) -> tuple[str, bool]:
        """Commit `files(head)` on top of the branch's newest commit; made anew where that is not it any more. The
        newest commit then, and whether it was made now: nothing is committed where nothing differs."""
        for left in range(TRIES - 1, -1, -1):
            info = self._ask(repository, lambda: self._api.model_info(repository, revision=revision or "main"))
            head = str(info.sha)
            try:
                made = self._commit_on(repository, revision, words, files(head), head)
                return made, made != head
            except UploadError as error:
                if left == 0 or status_of(error) != 412:
                    raise
            self._console.say(f"push: {repository} has changed meanwhile; committing on top of that")
        raise AssertionError("the last try returns or raises")

    def _commit_on(
        self, repository: str, revision: str | None, words: str, files: dict[str, Path | bytes], head: str
    ) -> str:
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=files[name]) for name in sorted(files)]
        # both parts of it ask again themselves, and tell the hub's own pace
        self._ask(
            repository,
            lambda: self._api.preupload_lfs_files(repository, operations, revision=revision, free_memory=False),
            tries=1,
        )
        made = self._ask(
            repository,
            lambda: self._api.create_commit(
                repository, operations, commit_message=words, revision=revision, parent_commit=head
            ),
        )
        return str(made.oid)
