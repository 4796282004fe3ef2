"""What the seedling shares with its family: added tokens, pre-tokeniser, names, shape."""

from pathlib import Path

SEEDLING = Path(__file__).resolve().parents[1] / "models/seedling"
VOCAB_SIZE = 4096
PREFIX = "model.language_model."  # of a published name

# The family's pre-tokeniser: contractions, words with one leading sign, single digits, runs of
# signs with their line ends, line ends, blanks.
PRE_TOKENISER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# In the family's order, at the end of the vocabulary. The second value is the `special` flag:
# tokens whose text belongs to a reply (thinking, tools, code infilling) are added, not special.
ADDED_TOKENS = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
    ("<|audio_start|>", True),
    ("<|audio_end|>", True),
    ("<tts_pad>", True),
    ("<tts_text_bos>", True),
    ("<tts_text_eod>", True),
    ("<tts_text_bos_single>", True),
    ("<|audio_pad|>", True),
)


def added_token_id(content):
    """Id of an added token, given VOCAB_SIZE."""
    first = VOCAB_SIZE - len(ADDED_TOKENS)
    return first + [name for name, _ in ADDED_TOKENS].index(content)


def published(name):
    """The name under which the family publishes a parameter of model.py."""
    return name if name.startswith("lm_head.") else PREFIX + name


# The untrained seedling. The head sizes are the published ones; the counts are what fits in 4 MB.
UNTRAINED_TEXT_CONFIG = dict(
    model_type="qwen3_5_moe_text",
    vocab_size=VOCAB_SIZE,
    hidden_size=256,
    num_hidden_layers=4,
    full_attention_interval=4,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    attn_output_gate=True,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    num_experts=8,
    num_experts_per_tok=4,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    eos_token_id=added_token_id("<|endoftext|>"),
    rope_parameters=dict(
        rope_type="default",
        mrope_section=[11, 11, 10],
        mrope_interleaved=True,
        rope_theta=1e7,
        partial_rotary_factor=0.25,
    ),
)

# The trained seedling: the same heads, eight layers, 20 million weights, 11.3 MB in 4 bits.
SEEDLING_TEXT_CONFIG = dict(
    UNTRAINED_TEXT_CONFIG,
    num_hidden_layers=8,
    layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
    num_experts=16,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=64,
    max_position_embeddings=8192,
)
