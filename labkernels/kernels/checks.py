"""What every verb does with its arguments: checks, defaults, lengths and outputs."""

import functools
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from labkernels import hardware
from labkernels.cuda.workspace import blank
from labkernels.kept import Kept
from labkernels.policy import NumericPolicy
from labkernels.units import CHUNK, COPY_BYTES, SCALES, require_int

MAX_KEYS = 2**30  # keys per request: 32 bits count these keys and one step of keys beyond them
MAX_SPLITS = 65_535  # splits per request: splits lie along a dimension of the grid
# Keys of a split that must not depend on the batch, of an MLA decode and of a cascade's prefix.
INVARIANT_KEYS_PER_SPLIT = 1024
WIDER = (torch.float16, torch.bfloat16)
REACH = 2**32 * CHUNK  # elements of a pool, 64 GiB: as many chunks as 32 bits can count


@functools.cache
def division(divisor: int) -> tuple[int, int]:
    """Return shift and inverse: (2 n * inverse >> 32) >> shift is n // divisor for 0 <= n < 2^31.

    The inverse is 2^(31 + shift) / divisor rounded up, too large by less than 1 in 2^31, since
    divisor <= 2^shift: the quotient is too large by less than 1 / divisor, and so rounds down to
    the same integer.
    """
    shift = (divisor - 1).bit_length()
    return shift, -(-(2 ** (31 + shift)) // divisor)


def require_tensor(name: str, value: object) -> None:
    """Raise ValueError unless the value is a tensor."""
    if not isinstance(value, torch.Tensor):
        refuse_kind(name, value, "torch.Tensor")


def refuse_kind(name: str, value: object, allowed: str) -> None:
    """Raise the ValueError for a value of a wrong class."""
    raise ValueError(f"{name} is of type {type(value).__name__}, allowed: {allowed}")


def require_device(name: str, tensor: torch.Tensor, device: torch.device, as_: str = "k") -> None:
    """Raise ValueError unless the tensor lives on `device`, as the tensor named `as_` does."""
    if tensor.device != device:
        raise ValueError(f"{name}.device = {tensor.device}, allowed: {device}, where {as_} is")


def require_rows(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless rows are contiguous and start where a 16-byte copy can."""
    if tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}.stride() = {tensor.stride()}, allowed: last stride 1 (a contiguous head_dim)"
        )
    require_place(name, tensor, tensor.stride()[:-1])


def require_place(name: str, tensor: torch.Tensor, strides: Iterable[int] = ()) -> None:
    """Raise ValueError unless copies of 16 bytes can start at the first element and each stride."""
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        words = f"{name} has no memory of its own, allowed: a tensor outside of torch.func"
        raise ValueError(words) from error
    width = tensor.element_size()
    if address % COPY_BYTES or any(stride * width % COPY_BYTES for stride in strides):
        raise ValueError(
            f"{name}: address {address:#x}, strides {tensor.stride()},"
            f" allowed: rows that start at multiples of {COPY_BYTES} bytes"
        )


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy with a negation that torch has put off carried out."""
    return tensor.resolve_neg() if getattr(tensor, "is_neg", bool)() else tensor


def require_plain(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for a view of negatives: a kernel takes memory as it is."""
    if tensor.is_neg():
        raise ValueError(f"{name}.is_neg() = True, allowed: False, as {name}.resolve_neg() is")


def require_no_gradient(verb: str, **tensors: torch.Tensor) -> None:
    """Raise ValueError if torch would expect gradients from a verb without gradients."""
    for name, tensor in tensors.items() if torch.is_grad_enabled() else ():
        if getattr(tensor, "requires_grad", False):  # other checks refuse other types
            raise ValueError(
                f"{name}.requires_grad = True, allowed: False, or torch.no_grad(), since {verb} has"
                " no gradients (ops.attention has)"
            )


def require_formats(
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    names: tuple[str, str] = ("k", "v"),
    dtypes: Iterable[torch.dtype] = WIDER,
) -> None:
    """Raise ValueError unless kernels support the dtype, dimensions, rows and device of K and V.

    layout: the names of the dimensions; K and V agree in all but the last.
    """
    first, second = names
    for name, tensor in zip(names, (k, v), strict=True):
        require_tensor(name, tensor)
        if tensor.dtype not in dtypes:
            allowed = ", ".join(map(str, dtypes))
            raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: {allowed}")
        if tensor.dim() != layout.count(",") + 1:
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {layout}")
        require_rows(name, tensor)
    if k.shape[-2] == 0:
        what = layout.strip("[]").split(", ")[-2].replace("kv_heads", "KV heads")
        raise ValueError(f"{first}.shape[{k.dim() - 2}] = 0 {what}, allowed: 1 or more")
    require_device(second, v, k.device, first)
    if v.dtype != k.dtype:
        raise ValueError(f"{second}.dtype = {v.dtype}, allowed: {k.dtype}, as {first}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            f"{second}.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as {first}"
        )


def require_cu_seqlens(
    name: str, tensor: torch.Tensor, device: torch.device, batch: int | None = None, of: str = ""
) -> None:
    """Raise ValueError unless a tensor can hold cumulative lengths; its contents are not read.

    batch: the number of the requests `of` what the lengths belong to.
    """
    require_tensor(name, tensor)
    if tensor.dtype != torch.int32:
        raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: torch.int32")
    if tensor.dim() != 1 or tensor.shape[0] < 2:
        raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: [batch + 1], batch >= 1")
    require_device(name, tensor, device)
    if tensor.stride(0) != 1:
        raise ValueError(f"{name}.stride() = {tensor.stride()}, allowed: (1,)")
    if batch is not None and len(tensor) != batch + 1:
        allowed = f"{batch + 1}, the requests of {of} and one more"
        raise ValueError(f"len({name}) = {len(tensor)}, allowed: {allowed}")


def read_lengths(
    name: str,
    cu_seqlens: torch.Tensor,
    total: int,
    known: Sequence[int] | None = None,
    known_as: str = "q_lens",
) -> np.ndarray:
    """Return the lengths with these cumulative sums, int64 [batch]: as `known`, or as read.

    Raises: ValueError naming the first entry that does not ascend from 0 to total.
    """
    if known is not None:
        return known_lengths(known_as, known, len(cu_seqlens) - 1, MAX_KEYS, total)
    return once_per_content(_read_lengths, cu_seqlens, name=name, total=total)


def _read_lengths(cu_seqlens: torch.Tensor, *, name: str, total: int) -> np.ndarray:
    sums = cu_seqlens.cpu().numpy().astype(np.int64)
    lengths = np.diff(sums)
    if sums[0] != 0:
        raise ValueError(f"{name}[0] = {sums[0]}, allowed: 0")
    if (lengths < 0).any():
        i = int(np.argmax(lengths < 0)) + 1
        raise ValueError(f"{name}[{i}] = {sums[i]}, allowed: {sums[i - 1]} or more, as it ascends")
    if sums[-1] != total:
        raise ValueError(f"{name}[-1] = {sums[-1]}, allowed: {total}, the rows that there are")
    if lengths.max() > MAX_KEYS:
        raise ValueError(f"{name}: a request of {lengths.max()} rows, allowed: 0 to {MAX_KEYS}")
    return lengths


def known_lengths(
    name: str, known: Sequence[int], batch: int, most: int, total: int | None = None
) -> np.ndarray:
    """Return the lengths that the caller's host knows, int64 [batch]: nothing is read from a GPU.

    Raises: ValueError if their number, a value or their total is wrong.
    """
    try:
        given = tuple(known)
        lengths = tuple(map(operator.index, given))
        if bool in map(type, given):  # a bool would index 0 or 1
            raise TypeError
    except TypeError:
        words = f"{name} = {known!r}, allowed: {batch} whole numbers, one per request"
        raise ValueError(words) from None
    return _known_lengths(name, lengths, batch, most, total)


@functools.lru_cache(maxsize=64)
def _known_lengths(
    name: str, known: tuple[int, ...], batch: int, most: int, total: int | None
) -> np.ndarray:
    if len(known) != batch:
        raise ValueError(f"len({name}) = {len(known)}, allowed: {batch}, one per request")
    for request, length in enumerate(known):
        require_int(f"{name}[{request}]", length, maximum=most)
    if total is not None and sum(known) != total:
        raise ValueError(f"sum({name}) = {sum(known)}, allowed: {total}, the rows that there are")
    return np.asarray(known, dtype=np.int64)


def facts(*tensors: torch.Tensor, names: tuple[str, ...] = ("q",)) -> tuple:
    """Return the facts of tensors that a call's choices depend on: neither contents nor addresses.

    Raises: ValueError naming an argument that is not a tensor, or holds negatives.
    """
    found: list = []
    try:
        for x in tensors:
            if x.is_neg():
                require_plain(names[len(found) // 4], x)
            found += (x.device, x.dtype, x.shape, x.stride())
    except (AttributeError, TypeError):
        for name, x in zip(names, tensors, strict=True):
            require_tensor(name, x)
        raise
    return tuple(found)


_SOUND = Kept(256)


def once_per_facts(found: tuple, check: Callable[[], None]) -> object:
    """Run a check that depends only on facts, unless these facts have passed it before.

    Returns an object that stands for the facts and hashes faster.
    """
    try:
        known = _SOUND.get(found)
    except TypeError:  # facts that cannot be hashed are wrong facts: a check refuses them
        known = None
    if known is None:
        check()
        known = _SOUND[found] = object()
    return known


_KEPT = Kept(128)  # contents read from a GPU that are kept


def once_per_content(read: Callable, *tensors: torch.Tensor, **how):
    """Return read(*tensors, **how), kept for a GPU's tensors until torch sees a change.

    Reading waits for the GPU, so the result is kept together with the tensors, whose memory can
    then not be reused by others. A change counts if torch makes it, or if `changed` tells torch. A
    write by a CUDA graph or by another library's kernel is not seen. A tensor of
    torch.inference_mode is read each time.
    """
    asked, versions = [read, *how.values()], []
    for x in tensors:
        if not x.is_cuda or x.is_inference():
            return read(*tensors, **how)
        asked += (x.data_ptr(), x.shape, x.stride())
        versions.append(x._version)
    place = tuple(asked)
    kept = _KEPT.get(place)
    if kept is not None and kept[0] == versions:
        return kept[2]
    value = read(*tensors, **how)
    _KEPT.pop(place, None)  # put at the end: the oldest result is dropped first
    _KEPT[place] = (versions, tensors, value)
    return value


def changed(tensor: torch.Tensor) -> None:
    """Tell torch that a kernel wrote a tensor."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
KV_DTYPES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}  # of caches of 8 bits
MAX_BATCH = 65_535  # requests lie along grid dimension z
DEFAULT_TARGET = "h200"  # the GPU whose plan and arithmetic a machine without a GPU follows


def target_gpu(device: torch.device, target: str | None) -> hardware.Gpu:
    """Return the GPU to plan for: the GPU of the tensors, or on a CPU the target that it imitates.

    Tensors of torch's meta device have no memory: a step on them needs a named target, has a plan
    and computes nothing.
    """
    plans_alone = device.type == "meta" and target is not None
    if device.type not in ("cpu", "cuda") and not plans_alone:
        raise ValueError(f"q.device = {device}, allowed: cpu, cuda")
    if device.type != "cuda":
        return hardware.gpu(DEFAULT_TARGET if target is None else target, "target")
    from labkernels.cuda.gpu import device as devices

    return devices.planning_gpu(device.index)


def scale_of(scale: float | None, head_dim: int | None = None) -> float:
    """Return the softmax scale, by default 1 / sqrt(head_dim)."""
    value = 1 / math.sqrt(head_dim) if scale is None else scale
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and SCALES[0] <= value <= SCALES[1]):
        words = f"{SCALES[0]:g} to {SCALES[1]:g}"
        raise ValueError(f"scale = {value}, allowed: a positive number, {words}")
    return value


def check_count(name: str, value: int | None, most: int) -> None:
    """Raise ValueError unless an optional count is 1 to `most`."""
    if value is not None:
        require_int(name, value, minimum=1, maximum=most)


def check_splits(splits: int | None, keys_per_split: int | None, batch_invariant: bool) -> None:
    """Raise ValueError if both ways to split the keys are asked for, or splits that may vary."""
    check_count("splits", splits, MAX_SPLITS)
    check_count("keys_per_split", keys_per_split, MAX_KEYS)
    if splits is not None and keys_per_split is not None:
        raise ValueError(
            f"splits = {splits} and keys_per_split = {keys_per_split}, allowed: one of the two"
        )
    if batch_invariant and splits not in (None, 1):
        raise ValueError(
            f"splits = {splits} and batch_invariant = True, allowed: splits = 1, or keys_per_split,"
            " since the keys of each of several splits depend on the longest request"
        )


def beside(pool: torch.Tensor) -> tuple[torch.dtype, ...]:
    """Return the dtypes of queries and new rows: the pool's, or 16 bits beside a pool of 8."""
    return WIDER if pool.dtype in KV_DTYPES else (pool.dtype,)


def require_query(
    q: torch.Tensor, k: torch.Tensor, head_dim: int, kv_heads: int, dims: str, dtypes: tuple = ()
) -> None:
    """Raise ValueError unless q fits K in dimensions, dtype, device, rows and heads."""
    require_tensor("q", q)
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: {dims}")
    if q.dtype not in (dtypes := dtypes or beside(k)):
        raise ValueError(f"q.dtype = {q.dtype}, allowed: {', '.join(map(str, dtypes))}, as k")
    require_device("q", q, k.device)
    require_rows("q", q)
    tokens, heads, channels = q.shape
    if channels != head_dim:
        raise ValueError(f"q.shape[2] = {channels}, allowed: {head_dim}, the head_dim of k")
    if heads == 0 or heads % kv_heads:
        raise ValueError(
            f"q.shape[1] = {heads} query heads, allowed: a multiple of {kv_heads} KV heads"
        )
    if tokens * heads > MAX_KEYS:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: up to {MAX_KEYS} rows of heads")


def has_positive_strides(*tensors: torch.Tensor) -> bool:
    """Return whether no dimension of several elements is expanded (has a stride of 0)."""
    return all(
        0 not in tensor.stride()
        or all(n < 2 or s > 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        for tensor in tensors
    )


def blank_outputs(q: torch.Tensor, head_dim_v: int, policy: NumericPolicy) -> dict:
    """Return blank tensors (without memory) that give fresh out and lse2 shape and dtype."""
    rows, device = tuple(q.shape[:2]), q.device
    dtype = {"input": q.dtype, "fp32": torch.float32, "fp64": torch.float64}[policy.out]
    return {
        "out": blank((*rows, head_dim_v), dtype, device),
        "lse2": blank(rows, torch.float32, device),
    }


def output(name: str, given: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return the caller's output tensor, checked, or a fresh tensor like the blank one."""
    if given is None:
        return torch.empty_like(like)
    require_tensor(name, given)
    require_plain(name, given)
    if given.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}.requires_grad = True, allowed: False, or torch.no_grad()")
    require_device(name, given, like.device)
    if given.dtype != like.dtype:
        raise ValueError(f"{name}.dtype = {given.dtype}, allowed: {like.dtype}")
    if given.shape != like.shape or not given.is_contiguous():
        raise ValueError(
            f"{name}: shape {tuple(given.shape)}, strides {given.stride()},"
            f" allowed: {tuple(like.shape)}, contiguous"
        )
    if name == "out":
        require_rows(name, given)
    return given
