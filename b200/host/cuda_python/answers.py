"""What a refused call of cuda.bindings returns: a tuple that tells whether anybody looks at it."""

from __future__ import annotations

import functools
from typing import Any


class Answer(tuple):
    """(status, value ...) of a refused call. unasked: reasons of such calls that nobody has looked
    at yet. Whoever unpacks, indexes, compares or prints the tuple has looked.
    """

    _unasked: list[str]
    _reason: str

    @classmethod
    def of(cls, values: tuple, reason: str, unasked: list[str]) -> Answer:
        """values: as the call returns them. reason: what to say if nobody looks."""
        answer = cls(values)
        answer._unasked, answer._reason = unasked, reason
        unasked.append(reason)
        return answer

    def _looked(self) -> None:
        """Reasons are told apart by identity: two calls may be refused with the same words."""
        self._unasked[:] = [reason for reason in self._unasked if reason is not self._reason]


def _looking(name: str) -> Any:
    method = getattr(tuple, name)

    @functools.wraps(method)
    def look(self: Answer, *others: Any) -> Any:
        self._looked()
        return method(self, *others)

    return look


for _name in ("getitem", "iter", "eq", "ne", "hash", "contains", "repr"):
    setattr(Answer, f"__{_name}__", _looking(f"__{_name}__"))
