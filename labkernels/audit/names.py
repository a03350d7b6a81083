"""The names of tensors in many tools, and which tensors of a file are read.

NAMES and REFUSED follow the arguments of FlashInfer 0.7, flash-attn 2.8, FlashAttention 3 and 4,
FlashMLA, transformers 4.57, vLLM 0.33, SGLang 0.5, TransformerEngine 2.20, JAX, torch and
FlashInfer-Bench.
"""

import math
import re
from dataclasses import dataclass, field

from labkernels.units import GiB, require_choice

# our name, and the names of others; case does not matter
NAMES: dict[str, tuple[str, ...]] = {
    "q": ("query", "query_states", "query_layer", "q_rope"),
    "k": ("key", "key_states", "key_layer", "k_cache", "key_cache", "paged_k_cache", "k_buffer"),
    "v": (
        *("value", "value_states", "value_layer", "v_cache", "value_cache", "paged_v_cache"),
        "v_buffer",
    ),
    "kv": ("kv_cache", "paged_kv_cache", "kv_data", "kv_packed"),
    "qkv": ("qkv_packed", "mixed_qkv"),
    "out": ("output", "o", "attn_output", "attn_out", "attention_output", "result"),
    "lse2": ("lse_base2", "logsumexp2"),
    "lse": ("softmax_lse", "logsumexp", "log_sum_exp"),
    "q_nope": ("q_latent", "q_absorbed"),
    "q_pe": ("q_rot",),
    "ckv": ("ckv_cache", "kv_c", "compressed_kv"),
    "kpe": ("kpe_cache", "k_pe"),
    "dout": ("do", "grad_out", "grad_output", "d_out"),
    "dq": ("grad_q", "grad_query"),
    "dk": ("grad_k", "grad_key"),
    "dv": ("grad_v", "grad_value"),
    "dsinks": ("dsink", "grad_sinks"),
    "cu_seqlens_q": ("qo_indptr", "cu_seq_lens_q", "q_indptr", "query_start_loc", "cum_seq_lens_q"),
    "cu_seqlens": ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens_k", "cum_seq_lens_kv"),
    "cu_seqlens_q_padded": (),
    "cu_seqlens_kv_padded": ("cu_seqlens_padded", "cu_seqlens_k_padded"),
    "kv_indptr": ("paged_kv_indptr", "indptr"),
    "kv_indices": ("paged_kv_indices", "indices"),
    "kv_last_page_len": ("paged_kv_last_page_len", "last_page_len"),
    "kv_len": (
        *("kv_lens", "cache_seqlens", "seqused_k", "seq_lens", "seqlens_k", "context_lens"),
        *("key_value_seq_lengths", "kv_len_arr", "actual_seq_lens_kv"),
        *("kv_seq_lens", "seq_lens_kv"),
    ),
    "page_table": ("block_table", "block_tables"),
    "scale": ("sm_scale", "softmax_scale", "scaling", "attn_scale", "bmm1_scale", "scaling_factor"),
    "causal": (),
    "is_causal": (),
    "mask_type": ("attn_mask_type",),
    "window_left": ("window_size_left", "sliding_window_left", "sliding_window_size"),
    "window_right": ("window_size_right",),
    "window_size": ("local_window_size",),
    "sliding_window": (),
    "soft_cap": ("softcap", "logits_soft_cap", "logit_cap", "attn_logit_softcapping"),
    "alibi": ("alibi_slopes", "slopes"),
    "sinks": ("sink", "s_aux", "attention_sinks", "attn_sink", "learnable_sink", "softmax_offset"),
    "mask": ("custom_mask", "attn_mask", "attention_mask"),
    "bias": ("attn_bias", "attention_bias", "core_attention_bias", "position_bias"),
    "q_scale": ("q_descale", "descale_q", "scale_q"),
    "k_scale": ("k_descale", "descale_k", "scale_k"),
    "v_scale": ("v_descale", "descale_v", "bmm2_scale", "scale_v"),
    "kv_layout": (),
    "kv_dtype": ("kv_cache_dtype", "kv_data_type"),
    "layout": ("qkv_format", "qkv_layout"),
    "q_heads": ("num_qo_heads", "num_q_heads", "num_attention_heads"),
    "kv_heads": ("num_kv_heads", "num_key_value_heads", "num_gqa_groups"),
}
# Names of what is not judged: their other names, the values that change nothing, and the reason.
REFUSED: dict[str, tuple[tuple[str, ...], tuple, str]] = {
    "dropout": (
        ("dropout_p", "p_dropout", "attention_dropout", "dropout_probability"),
        (0,),
        "it is random",
    ),
    "attention_chunk": (("attention_chunk_size", "chunked_attention_size"), (0, -1), "save a mask"),
    "xai_temperature_len": ((), (-1, 0), "save q times the factor of its place"),
    "softmax_type": ((), ("VANILLA", "LEARNABLE"), "save softmax_offset, of zeros for off-by-one"),
    "bias_type": (
        ("core_attention_bias_type",),
        ("NO_BIAS", "POST_SCALE_BIAS"),
        "save the bias times scale, or alibi_slopes",
    ),
    "qv": (("q_v",), (), "save q_nope and q_pe, or q and qv side by side"),
    "cache_leftpad": (("leftpad_k",), (), "a mask tensor says the same"),
    "cache_batch_idx": ((), (), "save the cache's rows in the order of q"),
    "seqused_q": (("query_seq_lengths",), (), "save the queries that are used, and cu_seqlens_q"),
    "score_mod": (("mask_mod", "block_mask", "block_sparse_tensors"), (), "save a mask or a bias"),
    "key_padding_mask": ((), (), "tools differ in what True hides: save attn_mask"),
    "head_mask": (("layer_head_mask",), (), "save the output before it"),
    "prefix_len_ptr": (("token_pos_in_items_ptr", "mm_prefix_range"), (), "save a mask"),
    "topk_length": (("topk_indices", "extra_k_cache"), (), "save the keys that are taken"),
    "skip_softmax_threshold_scale_factor": ((), (0,), "it leaves keys out by their scores"),
    "cp_world_size": (("dcp_world_size",), (1,), "keys of other ranks are missing"),
    "logit_capping_method": ((), ("TANH",), "no other cap is known"),
    "rotary_cos": (("rotary_sin",), (), "save q and the cache after the rotation"),
    "pos_encoding_mode": ((), ("NONE", 0), "save q and k after the rotation, or alibi_slopes"),
    "packed_custom_mask": ((), (), "save custom_mask before it is packed"),
    "out_scale": (("o_scale", "output_scale", "scale_o"), (1,), "save the output divided by it"),
}
_BY_NAME = {
    other: name
    for name, others in (NAMES | {name: row[0] for name, row in REFUSED.items()}).items()
    for other in (name, *others)
}
# Words of a name that nobody knows, which say that it may change what is right.
_MAY_MATTER = re.compile(
    "(?<![a-z])(masks?|bias|windows?|win|sliding|(soft)?cap(ping)?|sinks?|alibi|slopes?|"
    "p?drop(out)?|chunk(ed)?|mod|sparse|ranges?|valid|positions?|extra|lookback|rope|rotary|"
    "temp(erature)?|(de)?scal(es?|ing|ar)|zero|zp|lens|lengths|seqlens?|indptr|indices|ptr|cnt|"
    "leftpad|padding|causal|bottom|new)(?![a-z])"
)
DEFAULT_GIB = 4.0
_MOST_DIMENSIONS = 8


def canonical(name: str) -> str | None:
    """Return our name for a tensor; None for an unknown one. The last part of a path counts."""
    return _BY_NAME.get(_last(name))


def _last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2].lower()


def may_matter(name: str, value) -> bool:
    """Return whether a value that was not read may change what is right, by the words of its name.

    >>> may_matter("attn_window", 4), may_matter("attn_window", -1), may_matter("max_seq_lens", 9)
    (True, False, False)
    """
    known = canonical(name) or _MAY_MATTER.search(_last(name))
    known = known or ("_len" in name.lower() and getattr(value, "ndim", 0))
    neutral = (0, -1, 1) if re.search("scal|temp", name.lower()) else (0, -1)
    is_neutral = isinstance(value, int | float) and value in neutral
    return bool(known) and not is_neutral and not re.search("max.*len", name.lower())


def parse_map(pairs: list[str] | None) -> dict[str, str]:
    """Return the map of names that "ours=theirs" of a command line gives.

    Raises: ValueError for another form.
    """
    found = {}
    for pair in pairs or ():
        ours, equals, theirs = pair.partition("=")
        if not (equals and theirs):
            raise ValueError(f"map = {pair!r}, allowed: ours=theirs, such as q=query")
        require_choice("map", ours, tuple(NAMES))
        found[ours] = theirs
    return found


@dataclass
class Take:
    """Which tensors of a file are read.

    map: the file's names for some of ours. limit_bytes: for all tensors together. unread: tensors
    that are not needed, or functions that read them.
    """

    map: dict[str, str] = field(default_factory=dict)
    limit_bytes: float = DEFAULT_GIB * GiB
    unread: dict = field(default_factory=dict)
    bytes: int = 0

    def ours(self, theirs: str) -> str | None:
        """Return our name for a tensor; None for one that is not needed."""
        for ours, mapped in self.map.items():
            if mapped == theirs:
                return ours
        ours = canonical(theirs)
        return None if ours in self.map else ours

    def chosen(self, given: dict) -> dict[str, str]:
        """Return the names of one file that are to be read, each with ours; others are unread.

        A name that is ours to the letter goes before other names of the same thing.
        Raises: ValueError where two have the same right to one of our names.
        """
        candidates: dict[str, list[str]] = {}
        for theirs in given:
            if (ours := self.ours(theirs)) is not None:
                candidates.setdefault(ours, []).append(theirs)
        found = {}
        for ours, all_of_it in candidates.items():
            best = [x for x in all_of_it if x == ours] or [x for x in all_of_it if _last(x) == ours]
            best = best or all_of_it
            if len(best) > 1 and ours in NAMES:
                named = ", ".join(best[:4])
                allowed = f"one, or --map {ours}=NAME"
                raise ValueError(f"{len(best)} tensors may be {ours}: {named}; allowed: {allowed}")
            found[best[0]] = ours
        self.unread |= {theirs: x for theirs, x in given.items() if theirs not in found}
        return found

    def claim(self, theirs: str, shape, item_bytes: float) -> int:
        """Return the bytes of a tensor, and add them to the sum, before a byte is read.

        Raises: ValueError for a shape of no tensor, or if all tensors together exceed the limit.
        """
        sizes = [int(n) for n in shape]
        if len(sizes) > _MOST_DIMENSIONS or any(n < 0 for n in sizes):
            raise ValueError(f"tensor {theirs} has shape {tuple(sizes)[:9]}, allowed: tensors")
        size = math.ceil(math.prod(sizes) * item_bytes)
        self.bytes += size
        if not self.bytes <= self.limit_bytes:
            raise ValueError(
                f"tensor {theirs} of {math.prod(sizes):.3g} elements makes {self.bytes / GiB:.3g} "
                f"GiB in all, allowed: {self.limit_bytes / GiB:g} GiB; --max-gib raises it"
            )
        return size
