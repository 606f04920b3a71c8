"""Where lanes meet, on random graphs against the definitions, and on a long one in time."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from b200.program.flow import EXIT, post_dominators, reachable, where_arms_join


@dataclass
class Node:
    index: int
    successors: list[int]
    traps: bool = False
    only_leaves: bool = False


def graph(seed: int) -> list[Node]:
    rng = random.Random(seed)
    count = rng.randint(2, 12)
    blocks = []
    for i in range(count):
        ways = rng.sample([*range(count), EXIT], rng.choice((1, 1, 2)))
        blocks.append(Node(i, ways, traps=EXIT in ways and rng.random() < 0.3))
    return blocks


def comes_back(blocks: list[Node], start: int, without: int) -> bool:
    """Whether a way leads from a block out of the kernel, not by a trap, without another block."""
    seen = reachable(blocks, start, without)
    return any(EXIT in blocks[b].successors and not blocks[b].traps for b in seen)


def nearest(blocks: list[Node], block: int) -> list[int]:
    """The post-dominators of a block that all its others post-dominate: the immediate one."""
    if not comes_back(blocks, block, EXIT):
        return [EXIT]
    others = {
        b for b in reachable(blocks, block) if b != block and not comes_back(blocks, block, b)
    }
    found = [b for b in others if all(b == o or not comes_back(blocks, b, o) for o in others)]
    return found or [EXIT]


def test_post_dominators_by_their_definition():
    for seed in range(200):
        blocks = graph(seed)
        for block, found in enumerate(post_dominators(blocks)):
            assert nearest(blocks, block) == [found], (seed, block)


def test_a_long_kernel_takes_no_longer_a_block():
    """16,000 branches around a block each: bit sets of all blocks for each were 100 s."""
    count = 32_000
    blocks = [Node(i, [i + 1] if i % 2 else [i + 1, i + 2]) for i in range(count)]
    blocks += [Node(count, [count + 1]), Node(count + 1, [EXIT])]
    found = post_dominators(blocks)
    assert found[:-1] == [i + 2 - i % 2 for i in range(count)] + [count + 1]


JOINS = [
    # an arm of which a way returns: 0 -> 1 or 3; 1 -> return (2), or 3
    ([[1, 3], [2, 3], [EXIT], [4], [EXIT]], 0, 3),
    # both arms return in part and join at 3
    ([[1, 2], [EXIT, 3], [EXIT, 3], [4], [EXIT]], 0, 3),
    # arms that have nothing in common
    ([[1, 2], [EXIT], [EXIT]], 0, EXIT),
    # two ways into what they share: 3 and 4
    ([[1, 2], [3, 4], [3, 4], [EXIT], [EXIT]], 0, EXIT),
    # a loop left by its branch, from which lanes return, too
    ([[1], [EXIT, 2], [1, 3], [EXIT]], 2, 3),
    # a loop with work of its own in front of a return: lanes that go on do not come to it
    ([[1], [2, 3], [EXIT], [1, 4], [EXIT]], 1, EXIT),
]


@pytest.mark.parametrize("ways, branch, wanted", JOINS)
def test_where_arms_join_if_some_lanes_leave(ways, branch, wanted):
    blocks = [Node(i, successors) for i, successors in enumerate(ways)]
    assert where_arms_join(blocks, blocks[branch]) == wanted
