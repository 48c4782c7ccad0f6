"""Prompts with a tunable share of common prefix. Pure: everything comes from the generator that is passed in."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.model import WORDS


@dataclass(frozen=True, slots=True)
class Shape:
    """What requests look like.

    A prompt has `words` words, about one token each. Its first `shared_ratio` are one of `templates` fixed prefixes, the rest is
    its own: 0 shares nothing, 1 sends the same few prompts again and again.
    """

    words: int = 128
    output_tokens: int = 256
    templates: int = 5
    shared_ratio: float = 0.1
    seed: int = 7


def traced(tokens: int, blocks: Sequence[int], block_tokens: int, seed: int, rng: random.Random) -> str:
    """A prompt of about `tokens` words; those of each block come from its hash id alone, so equal leading ids are equal prefixes."""
    words: list[str] = []
    for block in blocks[: -(-tokens // block_tokens)]:
        words += random.Random(f"{seed}/block/{block}").choices(WORDS, k=block_tokens)
    return " ".join([*words[:tokens], *rng.choices(WORDS, k=max(0, tokens - len(words)))])


def prompt(shape: Shape, rng: random.Random) -> str:
    shared = round(shape.words * shape.shared_ratio)
    template = random.Random(f"{shape.seed}/{rng.randrange(shape.templates)}")
    return " ".join([*template.choices(WORDS, k=shared), *rng.choices(WORDS, k=shape.words - shared)])
