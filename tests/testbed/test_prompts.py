import random
from pathlib import Path

from tokenizers import Tokenizer

from testbed.model import write_model
from testbed.prompts import Shape, prompt


def test_a_word_is_a_token(tmp_path: Path) -> None:
    """With our tokenizer, n words after a space are n tokens, so lengths are what was asked for."""
    write_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = prompt(Shape(words=128), random.Random(1))
    assert len(tokenizer.encode(" " + text).ids) == 128


def test_shared_ratio_is_the_common_prefix() -> None:
    """The share of words that a template's prompts have in common is exact; 0 shares nothing and 1 everything."""
    for ratio, expected in ((0.0, 0), (0.5, 50), (1.0, 100)):
        shape = Shape(words=100, templates=1, shared_ratio=ratio)
        rng = random.Random(3)
        a, b = prompt(shape, rng).split(), prompt(shape, rng).split()
        assert a[:expected] == b[:expected]
        assert len(a) == 100
        assert (a == b) == (ratio == 1.0)


def test_same_seed_same_prompts() -> None:
    """A run can be repeated: the generator decides everything."""
    shape = Shape()
    assert [prompt(shape, random.Random(5)) for _ in range(2)] == [prompt(shape, random.Random(5))] * 2
    prefixes = {" ".join(prompt(shape, random.Random(i)).split()[:13]) for i in range(200)}
    assert len(prefixes) == shape.templates
