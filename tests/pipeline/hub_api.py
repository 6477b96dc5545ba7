"""What the test hub answers, once a request has a path, a body and a token; the server around it is `hub_server`.

Faithful where it matters to a client: files that are there get no upload action, uploads outlive the process that made
them, a stale parent is 412, another's private repository is 404, a gated one 403, a large file is elsewhere and is sent
no token.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import yaml

from tests.pipeline.hub_store import File, Refused, Repository, Store

PAGE = 3  # files on a page of a tree
Answer = tuple[int, dict[str, str], bytes]
Read = Callable[[], bytes]


class Api:
    """Answers; `part`: bytes above which large files go up in parts of that size. `endpoint` and `elsewhere` are the
    same server under two hosts' names."""

    def __init__(self, endpoint: str, elsewhere: str, part: int) -> None:
        self.store, self.endpoint, self.elsewhere, self.part = Store(), endpoint, elsewhere, part
        self._parts: dict[str, dict[int, bytes]] = {}

    def answer(self, method: str, path: str, query: dict[str, str], read: Read, headers: Any) -> Answer:
        """Refused for whatever is no success."""
        parts = path.strip("/").split("/")
        if parts[0] == "large":
            return self._large(method, parts[1:], query, read, headers)
        names = self.store.names_of(token_of(headers))
        if parts[0] == "api":
            return self._api(method, parts[1:], query, read, names)
        if parts[1].endswith(".git"):
            return self._batch(f"{parts[0]}/{parts[1][:-4]}", json.loads(read()), names)
        if parts[2] == "resolve":
            return self._resolve(self._readable("/".join(parts[:2]), names), parts[3], "/".join(parts[4:]))
        raise Refused(404, "Sorry, we can't find the page you are looking for.")

    def _api(self, method: str, parts: list[str], query: dict[str, str], read: Read, names: tuple[str, ...]) -> Answer:
        if parts == ["whoami-v2"]:
            if not names:
                raise Refused(401, "Invalid username or password.")
            orgs = [{"name": name, "type": "org"} for name in names[1:]]
            return _json({"type": "user", "name": names[0], "orgs": orgs, "auth": {"type": "access_token"}})
        if parts == ["repos", "create"]:
            return self._create(json.loads(read()), names)
        if parts == ["validate-yaml"]:
            return _json({"errors": [], "warnings": []}) if not (bad := _bad_card(json.loads(read()))) else bad
        if parts[0] != "models" or len(parts) < 3:
            raise Refused(404, "Sorry, we can't find the page you are looking for.")
        name, verb, rest = "/".join(parts[1:3]), "/".join(parts[3:4]), parts[4:]
        found = self._readable(name, names)
        if method == "POST":
            self._writable(name, names)
            calls = {
                "branch": self._branch,
                "preupload": self._preupload,
                "commit": self._commit,
                "verify": self._verify,
            }
            return calls[verb](found, rest[0], read())
        if verb == "tree":
            return self._tree(found, rest[0], query)
        if verb == "refs":
            heads = [
                {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": oid}
                for branch, oid in found.branches.items()
            ]
            return _json({"branches": heads, "tags": [], "converts": []})
        head = found.head(rest[0] if verb == "revision" else "main")
        siblings = [{"rfilename": path} for path in sorted(head.files)]
        facts = {"private": found.private, "gated": "auto" if found.gated else False, "tags": [], "siblings": siblings}
        return _json({"_id": "0", "id": name, "modelId": name, "sha": head.oid, **facts})

    def _readable(self, name: str, names: tuple[str, ...]) -> Repository:
        found = self.store.repositories.get(name)
        if found is None or (found.private and name.split("/")[0] not in names):
            raise Refused(404 if names else 401, "Repository not found", "RepoNotFound")
        if found.gated and name.split("/")[0] not in names:
            raise Refused(403, f"Access to model {name} is restricted.", "GatedRepo")
        return found

    def _writable(self, name: str, names: tuple[str, ...]) -> None:
        if name.split("/")[0] not in names:
            raise Refused(401 if not names else 403, f"You don't have the rights to write to {name}")

    def _create(self, said: dict[str, Any], names: tuple[str, ...]) -> Answer:
        if not names:
            raise Refused(401, "Invalid username or password.")
        owner = said["organization"] or names[0]
        name = f"{owner}/{said['name']}"
        if owner not in names:
            raise Refused(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        url = json.dumps({"url": f"{self.endpoint}/{name}", "error": "You already created this model repo"})
        try:
            self.store.create(name, private=said.get("visibility") == "private")
        except Refused as refused:
            return refused.status, {}, url.encode()
        return _json({"url": f"{self.endpoint}/{name}", "name": name})

    def _branch(self, found: Repository, branch: str, _: bytes) -> Answer:
        self.store.branch(found.name, branch)
        return _json({})

    def _preupload(self, found: Repository, revision: str, body: bytes) -> Answer:
        there = found.head(revision).files
        files = [
            {
                "path": one["path"],
                "uploadMode": self.store.upload_mode(one["path"], one["size"]),
                "shouldIgnore": False,
                "oid": there[one["path"]].etag if one["path"] in there else None,
            }
            for one in json.loads(body)["files"]
        ]
        return _json({"files": files})

    def _commit(self, found: Repository, branch: str, body: bytes) -> Answer:
        lines = [json.loads(line) for line in body.decode().splitlines()]
        header = lines[0]["value"]
        small = {one["value"]["path"]: one["value"]["content"] for one in lines if one["key"] == "file"}
        large = {one["value"]["path"]: one["value"]["oid"] for one in lines if one["key"] == "lfsFile"}
        contents = {path: base64.b64decode(content) for path, content in small.items()}
        parent = header.get("parentCommit")
        made = self.store.commit(found.name, branch, header["summary"], parent, contents, large)
        url = f"{self.endpoint}/{found.name}/commit/{made.oid}"
        return _json({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""})

    def _verify(self, found: Repository, _: str, body: bytes) -> Answer:
        said = json.loads(body)
        if len(self.store.large.get(said["oid"], b"")) != said["size"]:
            raise Refused(404, "the upload is not there")
        return _json({})

    def _tree(self, found: Repository, revision: str, query: dict[str, str]) -> Answer:
        files = sorted(found.head(revision).files.items())
        start = int(query.get("cursor", "0"))
        more = {}
        if start + PAGE < len(files):
            path = f"{self.endpoint}/api/models/{found.name}/tree/{revision}?recursive=true&cursor={start + PAGE}"
            more = {"Link": f'<{path}>; rel="next"'}
        status, headers, body = _json([_entry(path, one) for path, one in files[start : start + PAGE]])
        return status, headers | more, body

    def _batch(self, name: str, said: dict[str, Any], names: tuple[str, ...]) -> Answer:
        self._readable(name, names)
        self._writable(name, names)
        objects = [
            {"oid": one["oid"], "size": one["size"]} | self._actions(name, one["oid"], one["size"])
            for one in said["objects"]
        ]
        return _json({"transfer": "basic", "objects": objects})

    def _actions(self, name: str, oid: str, size: int) -> dict[str, Any]:
        if oid in self.store.large:
            return {}
        place = f"{self.elsewhere}/large/{oid}"
        upload: dict[str, Any] = {"href": place}
        if size > self.part:
            parts = {str(n + 1): f"{place}?part={n + 1}" for n in range(-(-size // self.part))}
            upload = {"href": f"{place}?complete=1", "header": {"chunk_size": str(self.part), **parts}}
        return {"actions": {"upload": upload, "verify": {"href": f"{self.endpoint}/api/models/{name}/verify/main"}}}

    def _large(self, method: str, parts: list[str], query: dict[str, str], read: Read, headers: Any) -> Answer:
        if token_of(headers) is not None:
            raise Refused(400, "only one auth mechanism allowed")
        oid = parts[0]
        if method == "GET":
            return _ranged(self.store.large[oid], headers.get("Range"))
        if "part" in query:
            content = read()
            self._parts.setdefault(oid, {})[int(query["part"])] = content
            return 200, {"ETag": f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'}, b""
        if "complete" in query:
            numbers = [one["partNumber"] for one in json.loads(read())["parts"]]
            parts_of = self._parts.pop(oid)
            content = b"".join(parts_of[number] for number in numbers)
        else:
            content = read()
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refused(400, "the content is not what its hash says")
        self.store.large[oid] = content
        return _json({"success": True})

    def _resolve(self, found: Repository, revision: str, path: str) -> Answer:
        head = found.head(revision)
        commit = {"X-Repo-Commit": head.oid}
        if path not in head.files:
            raise Refused(404, "Entry not found", "EntryNotFound", commit)
        one = head.files[path]
        if one.sha256 is None:
            return 200, commit | {"ETag": f'"{one.oid}"'}, self.store.content(one)
        linked = {"X-Linked-ETag": f'"{one.sha256}"', "X-Linked-Size": str(one.size)}
        return 302, commit | linked | {"Location": f"{self.elsewhere}/large/{one.sha256}"}, b""


def _json(data: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(data).encode()


def _entry(path: str, one: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": one.oid, "size": one.size, "path": path}
    return entry if one.sha256 is None else entry | {"lfs": {"oid": one.sha256, "size": one.size, "pointerSize": 134}}


def _ranged(content: bytes, said: str | None) -> Answer:
    if said is None:
        return 200, {}, content
    start = int(said.removeprefix("bytes=").split("-")[0])
    return 206, {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}, content[start:]


def _bad_card(said: dict[str, Any]) -> Answer | None:
    """What the Hub answers to metadata that it cannot use: a small part of its rules."""
    block = said["content"].split("---\n")[1]
    found = yaml.safe_load(block)
    if isinstance(found.get("license"), str) and isinstance(found.get("tags", []), list):
        return None
    return (
        400,
        {},
        json.dumps({"error": "Invalid metadata", "errors": [{"message": '"license" must be a string'}]}).encode(),
    )


def token_of(headers: Any) -> str | None:
    """Of a request; None where it has none."""
    said = headers.get("Authorization")
    return None if said is None else str(said).removeprefix("Bearer ")
