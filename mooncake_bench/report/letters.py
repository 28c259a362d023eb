"""What letters a reader's encoding can show."""

from __future__ import annotations


def shows_all(encoding: str | None) -> bool:
    """Whether text in this encoding may hold any letter; False where the encoding is not known."""
    return (encoding or "").lower().replace("-", "").replace("_", "").startswith("utf")
