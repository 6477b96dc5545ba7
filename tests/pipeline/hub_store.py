"""What the test hub keeps: repositories of commits of files, large files by their hash, tokens and what was asked.

As git and the Hub have it: a file is a blob with git's hash; of a large one git holds a pointer, and the content lies
in a store that all repositories share and that survives an upload which was never committed. Rights: a token writes
under its owner's name, and under those of its organizations; what it may not read does not exist for it.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.bin filter=lfs diff=lfs merge=lfs -text\n"
_LARGE = (".safetensors", ".bin")
_LARGE_FROM = 10 * 2**20  # bytes, whatever the name


class Refused(Exception):
    """An answer that is no success; `code` is the Hub's own word for it."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers or {}


@dataclass(frozen=True)
class File:
    """`oid`: git's hash of the blob; `sha256`: of the content, for large files only."""

    oid: str
    size: int
    sha256: str | None

    @property
    def etag(self) -> str:
        """What a client compares its copy with, and what `preupload` answers with."""
        return self.sha256 or self.oid


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    files: dict[str, File]


@dataclass
class Repository:
    name: str
    private: bool
    gated: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def head(self, revision: str) -> Commit:
        """Of a branch's name or a commit's hash."""
        oid = self.branches.get(revision, revision)
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[oid]


class Store:
    """All of it; every method may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tokens: dict[str, tuple[str, ...]] = {}  # names it writes under, its owner's first
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}

    def names_of(self, token: str | None) -> tuple[str, ...]:
        """What the token writes under; nothing without one. 401 for one that is not known."""
        if token is None:
            return ()
        if token not in self.tokens:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.tokens[token]

    def create(self, name: str, private: bool) -> Repository:
        """A repository with its first commit, as the Hub makes it. 409 where there is one."""
        with self.lock:
            if name in self.repositories:
                raise Refused(409, "You already created this model repo")
            found = self.repositories[name] = Repository(name, private)
            attributes = {".gitattributes": self._small(ATTRIBUTES)}
            self._add(found, "main", Commit("", None, "initial commit", attributes))
            return found

    def branch(self, name: str, branch: str) -> None:
        """At main's newest commit. 409 where there is one."""
        with self.lock:
            found = self.repositories[name]
            if branch in found.branches:
                raise Refused(409, f"Reference already exists: refs/heads/{branch}")
            found.branches[branch] = found.branches["main"]

    def upload_mode(self, path: str, size: int) -> str:
        """`lfs` or `regular`."""
        return "lfs" if path.endswith(_LARGE) or size >= _LARGE_FROM else "regular"

    def commit(
        self, name: str, branch: str, title: str, parent: str | None, small: dict[str, bytes], large: dict[str, str]
    ) -> Commit:
        """Add files (contents, and hashes of large ones) to a branch. 412 where it is not at `parent` any more."""
        with self.lock:
            found = self.repositories[name]
            if branch not in found.branches:
                raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            before = found.head(branch)
            if parent is not None and parent != before.oid:
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            for path, sha256 in large.items():
                if sha256 not in self.large:
                    raise Refused(400, f"LFS pointer of {path} points to a file that does not exist")
            files = before.files | {path: self._small(content) for path, content in small.items()}
            files |= {path: self._pointer(sha256) for path, sha256 in large.items()}
            return self._add(found, branch, Commit("", before.oid, title, files))

    def content(self, found: File) -> bytes:
        """Of a file in some commit."""
        return self.blobs[found.oid] if found.sha256 is None else self.large[found.sha256]

    def read(self, name: str, path: str, revision: str = "main") -> bytes:
        """For tests: a file's content."""
        with self.lock:
            return self.content(self.repositories[name].head(revision).files[path])

    def _add(self, found: Repository, branch: str, commit: Commit) -> Commit:
        words = [
            commit.parent or "",
            commit.title,
            *(f"{path}:{one.oid}" for path, one in sorted(commit.files.items())),
        ]
        made = Commit(_sha1("\0".join([found.name, *words]).encode()), commit.parent, commit.title, commit.files)
        found.commits[made.oid] = made
        found.branches[branch] = made.oid
        return made

    def _small(self, content: bytes) -> File:
        oid = git_oid(content)
        self.blobs[oid] = content
        return File(oid, len(content), None)

    def _pointer(self, sha256: str) -> File:
        size = len(self.large[sha256])
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        return File(git_oid(pointer.encode()), size, sha256)


@dataclass
class Fault:
    """What the hub does instead of answering, `times` times, to requests whose "METHOD /path" holds `words`, after
    letting `skip` of them pass: an error, or, with status None, to hang up, `lost` after having done what was asked.
    `before`: done when it is met; with status 0 the request is then answered as ever."""

    words: str
    status: int | None
    message: str = ""
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 10**9
    skip: int = 0
    before: Callable[[], Any] | None = None
    lost: bool = False
    raw: bytes | None = None  # the body, in place of the Hub's form


def git_oid(content: bytes) -> str:
    """As git names a blob."""
    return _sha1(b"blob %d\0" % len(content) + content)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
