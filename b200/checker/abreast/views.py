"""Which view the checker has of the next clusters."""

from __future__ import annotations

from b200.checker.abreast.apart import ApartAbreast
from b200.checker.abreast.follow import FollowAbreast
from b200.checker.observer import Observer


def next_clusters(observer: Observer) -> FollowAbreast | None:
    """The view of the checker of clusters abreast; None if the next ones must run one by one."""
    following = observer.following
    if following is None or not following.on or following.follower is not None:
        return None
    if following.traces.root.next is None or observer.dependence is not None:
        return None
    if not all(first.several for first in observer.globals.reductions.values()):
        return None  # what the rule of sums finds is found in a checked cluster
    return (ApartAbreast if following.traces.apart else FollowAbreast)(observer)
