"""Models of transformers, small and with random weights: by name, how to make one and its batches."""

from typing import Any, Callable, Dict, List

import torch
import transformers
from torch import nn

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCABULARY = 67
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=3, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                                attn_pdrop=0.0, bos_token_id=0, eos_token_id=1))  # fmt: skip


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER))


def _qwen3() -> nn.Module:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, head_dim=16, tie_word_embeddings=True))


def _opt() -> nn.Module:
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(vocab_size=VOCABULARY, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2,
                               max_position_embeddings=32, word_embed_proj_dim=32, dropout=0.0, bos_token_id=0, eos_token_id=1,
                               pad_token_id=1))  # fmt: skip


def _bert() -> nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                                max_position_embeddings=32, **_NO_DROPOUT))  # fmt: skip


def _t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, dropout_rate=0.0,
                              decoder_start_token_id=0))  # fmt: skip


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=16, patch_size=4,
                               num_labels=5, **_NO_DROPOUT))  # fmt: skip


def _qwen3_moe() -> nn.Module:
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**DECODER, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24))  # fmt: skip


def _mixtral() -> nn.Module:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2))


def _mamba() -> nn.Module:
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2, bos_token_id=0, eos_token_id=1,
                                 pad_token_id=0))  # fmt: skip


MODELS: Dict[str, Callable[[], nn.Module]] = {
    "gpt2": _gpt2, "llama": _llama, "qwen3": _qwen3, "opt": _opt, "bert": _bert, "t5": _t5, "vit": _vit, "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe, "mamba": _mamba,
}  # fmt: skip


def make(name: str) -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return MODELS[name]().train()


def batches(name: str, count: int, size: int = 3, length: int = 10) -> List[Dict[str, Any]]:
    """Keyword arguments of a forward that returns a loss."""
    dice = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        if name == "vit":
            pixels = torch.randn(size, 3, 16, 16, generator=dice)
            found.append({"pixel_values": pixels, "labels": torch.randint(0, 5, (size,), generator=dice)})
        else:
            ids = torch.randint(2, VOCABULARY, (size, length), generator=dice)
            found.append({"input_ids": ids, "labels": ids})
    return found
