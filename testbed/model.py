"""A tokenizer with a model's papers and the mocker's timing: all that Dynamo needs where there are no GPUs."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from testbed.topology import Timing

MAX_TOKENS = 8192
# Each of these is one token when a space precedes it, so a prompt of n words has n tokens.
_WORDS = (
    "amber anchor apple arrow autumn basin beacon birch blossom bridge bronze canyon cedar circle cloud copper coral cotton "
    "crystal delta desert diamond dragon eagle ember falcon feather fern field flame forest fossil garden glacier granite "
    "harbor hazel heron hollow horizon island ivory jasper jungle kernel lagoon lantern lemon linen lotus maple marble meadow "
    "mirror mosaic nebula nectar oasis ocean olive onyx orbit orchid otter pebble pepper pine planet plum prairie prism "
    "quartz rabbit raven reef ribbon river robin saddle saffron sage salmon silver sparrow spring spruce summit sunset "
    "thunder tiger timber topaz tulip valley velvet violet walnut willow winter zephyr "
)
WORDS = tuple(_WORDS.split())
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write_model(folder: Path) -> None:
    """The four files by which Dynamo knows a model; nothing is fetched from a hub."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" " + " ".join(WORDS)] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": MAX_TOKENS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_key_value_heads": 4,
    }
    tokenizer_config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": MAX_TOKENS,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    papers = {
        "config.json": config,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
    }
    for name, content in papers.items():
        (folder / name).write_text(json.dumps(content))


def write_timing(path: Path, timing: Timing) -> None:
    """The mocker's profile: TTFT by input length; ITL over active KV tokens and context, up to a tenth above its base when full."""
    input_tokens = np.array([1, 64, 128, 256, 512, 1024, 2048, 4096, MAX_TOKENS], dtype=np.float64)
    kv_tokens = np.array([0, 1e4, 5e4, 1e5, 5e5, 1e6])
    context_tokens = np.array([128, 512, 2048, MAX_TOKENS], dtype=np.float64)
    kv, context = np.meshgrid(kv_tokens, context_tokens, indexing="ij")
    np.savez(
        path,
        prefill_isl=input_tokens,
        prefill_ttft_ms=timing.prefill_base_ms + input_tokens * timing.prefill_token_ms,
        decode_active_kv_tokens=kv_tokens,
        decode_context_length=context_tokens,
        decode_itl=timing.itl_ms * (1 + kv * 1e-6 + context * 5e-6),
    )
