"""What a refused call of cuda.bindings returns: a tuple that tells whether anybody looks at it."""

from __future__ import annotations

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

    def __getitem__(self, index: Any) -> Any:
        self._looked()
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        self._looked()
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self._looked()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self._looked()
        return super().__hash__()

    def __contains__(self, value: object) -> bool:
        self._looked()
        return super().__contains__(value)

    def __repr__(self) -> str:
        self._looked()
        return super().__repr__()
