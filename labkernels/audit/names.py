"""The names of tensors in many tools, and which tensors are read."""

import math
from dataclasses import dataclass, field

from labkernels.units import require_choice

# our name, and the names of others; case does not matter
NAMES: dict[str, tuple[str, ...]] = {
    "q": ("query", "query_states", "query_layer", "q_rope"),
    "k": ("key", "key_states", "key_layer", "k_cache", "key_cache", "paged_k_cache"),
    "v": ("value", "value_states", "value_layer", "v_cache", "value_cache", "paged_v_cache"),
    "kv": ("kv_cache", "paged_kv_cache", "kv_data"),
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
    "cu_seqlens_q": ("qo_indptr", "cu_seq_lens_q", "q_indptr"),
    "cu_seqlens": ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens_k"),
    "kv_indptr": ("paged_kv_indptr", "indptr"),
    "kv_indices": ("paged_kv_indices", "indices"),
    "kv_last_page_len": ("paged_kv_last_page_len", "last_page_len"),
    "kv_len": ("kv_lens", "cache_seqlens", "seqused_k", "seq_lens", "seqlens_k", "context_lens"),
    "page_table": ("block_table", "block_tables"),
    "scale": ("sm_scale", "softmax_scale", "scaling", "attn_scale"),
    "causal": ("is_causal",),
    "window_left": ("sliding_window_left",),
    "soft_cap": ("softcap", "logits_soft_cap", "logit_cap"),
    "alibi": ("alibi_slopes", "slopes"),
    "sinks": ("sink", "s_aux", "attention_sinks"),
    "mask": ("custom_mask", "attn_mask", "attention_mask"),
    "k_scale": ("k_descale", "descale_k"),
    "v_scale": ("v_descale", "descale_v"),
    "kv_layout": (),
}
_BY_NAME = {other: name for name, others in NAMES.items() for other in (name, *others)}
GIB = 2**30
DEFAULT_GIB = 4.0
_MOST_DIMENSIONS = 8


def canonical(name: str) -> str | None:
    """Return our name for a tensor; None for an unknown one. The last part of a path counts."""
    last = name.replace("/", ".").rpartition(".")[2].lower()
    return _BY_NAME.get(last)


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

    map: the file's names for some of ours. limit_bytes: for all tensors together. unread: names of
    tensors that are not needed.
    """

    map: dict[str, str] = field(default_factory=dict)
    limit_bytes: float = DEFAULT_GIB * GIB
    unread: list[str] = field(default_factory=list)
    bytes: int = 0

    def name(self, theirs: str) -> str | None:
        """Return our name for a tensor that is to be read; None for any other."""
        mapped = {v: k for k, v in self.map.items()}
        found = mapped.get(theirs)
        if found is None:
            found = canonical(theirs)
            if found in self.map:  # the map names another tensor for it
                found = None
        if found is None:
            self.unread.append(theirs)
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
                f"tensor {theirs} of {math.prod(sizes):.3g} elements makes {self.bytes / GIB:.3g} "
                f"GiB in all, allowed: {self.limit_bytes / GIB:g} GiB; --max-gib raises it"
            )
        return size
