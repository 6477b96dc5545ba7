"""The base of every configuration model: frozen, unknown keys refused, hashable as canonical JSON."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A configuration section. Construct once, never mutate; a wrong key or value is an error, not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def fingerprint(self) -> str:
        """SHA-256 of the section as canonical JSON: equal settings, equal fingerprint."""
        return fingerprint(self.model_dump(mode="json"))


def fingerprint(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value with sorted keys and no whitespace."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
