"""Writes the same call as each tool that is installed here writes it, for tests and as samples.

`python -m tests.audit.dumps.real_tools FOLDER`, in an environment with the tools, writes the
samples: flashinfer-python 0.7.2.post1, sglang 0.5.23, transformers 5.24.0 and safetensors 0.8.0,
installed by pip without their dependencies, wrote those of `samples`. Where a tool's package needs
a GPU to be imported, the module that writes is loaded alone.
"""

import importlib.util
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from labkernels.units import LOG2_E
from tests.measure.strangers import inputs, right

DECODE = inputs.call("normal", inputs.Shape(2, 4, 2, 1, 16, 16), "bf16", 3)
PREFILL = inputs.call("normal", inputs.Shape(1, 4, 2, 12, 12, 16, causal=True), "bf16", 4)
FLASH = right.RIGHT["flash, blocks of 64"]
PAGE = 4


def _module(package: str, path: str, stubs: dict[str, dict] | None = None) -> ModuleType:
    """Return a module of an installed package, without the rest of the package."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations is not None
    file = Path(found.submodule_search_locations[0]) / path
    kept = {name: sys.modules.get(name) for name in stubs or {}}
    for name, members in (stubs or {}).items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(members)
    spec = importlib.util.spec_from_file_location(f"real_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for name, before in kept.items():
        sys.modules.pop(name) if before is None else sys.modules.update({name: before})
    return module


def _pages(x):
    return x.transpose(1, 2).reshape(-1, PAGE, x.shape[1], x.shape[3]).contiguous()


def flashinfer(folder: Path, out, monkeypatch, safetensors: bool = False) -> Path:
    """Write the folder of a call at level 10, by the decorator of FlashInfer's own functions."""
    monkeypatch.setenv("FLASHINFER_LOGLEVEL", "10")
    monkeypatch.setenv("FLASHINFER_DUMP_DIR", str(folder))
    monkeypatch.setenv("FLASHINFER_LOGDEST", os.devnull)
    monkeypatch.setenv("FLASHINFER_DUMP_SAFETENSORS", str(int(safetensors)))
    logging = _module("flashinfer", "api_logging.py")

    class BatchDecodeWithPagedKVCacheWrapper:
        @logging.flashinfer_api
        def plan(self, indptr, indices, last_page_len, num_qo_heads, sm_scale=None) -> None:
            pass

        @logging.flashinfer_api
        def run(self, q, paged_kv_cache, return_lse: bool = False):
            lse2 = right.exact(DECODE)[1][:, :, 0] * LOG2_E
            return out(DECODE)[:, :, 0].contiguous(), lse2.float().contiguous()

    pages = DECODE.k.shape[2] // PAGE
    wrapper, batch = BatchDecodeWithPagedKVCacheWrapper(), len(DECODE.q)
    places = torch.arange(batch * pages, dtype=torch.int32)
    last = torch.full((batch,), PAGE, dtype=torch.int32)
    wrapper.plan(places[::pages].new_tensor([0, pages, 2 * pages]), places, last, 4)
    pools = _pages(DECODE.k), _pages(DECODE.v)
    wrapper.run(DECODE.q[:, :, 0].contiguous(), pools)
    return next(x for x in sorted(folder.iterdir(), reverse=True) if "run" in x.name)


def sglang(folder: Path, out, monkeypatch) -> Path:
    """Write a folder of SGLang's dumper, as a model that calls dumper.dump in its layers."""
    nothing = dict.fromkeys(("get_parallel", "get_server_args", "get_serving", "get_device"))
    nothing |= dict.fromkeys(("sock_recv", "sock_send", "wrap_as_pickle"))
    rooms = ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.io_struct")
    rooms += ("sglang.srt.runtime_context", "sglang.srt.utils")
    stubs = {name: nothing for name in rooms}
    module = _module("sglang", "srt/debug_utils/dumper.py", stubs)
    config = module.DumperConfig(enable=True, dir=str(folder), exp_name="run")
    module._collect_static_meta = dict  # what describes a server, which is not here
    dumper = module._Dumper(config=config)
    names = {"q": DECODE.q[:, :, 0], "k": DECODE.k, "v": DECODE.v, "output": out(DECODE)[:, :, 0]}
    for name, value in names.items():
        dumper.dump(f"attn__{name}", value.contiguous(), layer_id=3)
    return folder


def transformers(folder: Path, out, monkeypatch) -> Path:
    """Write what a hook sees of an attention function of transformers: its arguments and result."""
    torch_sdpa = importlib.import_module("transformers.integrations.sdpa_attention")

    class Layer(torch.nn.Module):
        num_key_value_groups, is_causal, training = 2, True, False

    given = {"query": PREFILL.q, "key": PREFILL.k, "value": PREFILL.v, "scaling": PREFILL.scale}
    result, _ = torch_sdpa.sdpa_attention_forward(Layer(), *list(given.values())[:3], None)
    wrong = out(PREFILL).transpose(1, 2) - FLASH(PREFILL).transpose(1, 2)
    folder.mkdir(exist_ok=True)
    path = folder / "attention.pt"
    torch.save(given | {"attn_output": result + wrong, "is_causal": True}, path)
    return path


def safetensors(folder: Path, out, monkeypatch) -> Path:
    """Write a .safetensors file with the names of flash-attn's arguments."""
    save_file = importlib.import_module("safetensors.torch").save_file
    folder.mkdir(exist_ok=True)
    given = {"q": PREFILL.q, "k": PREFILL.k, "v": PREFILL.v, "out": out(PREFILL)}
    given = {name: x.transpose(1, 2).contiguous() for name, x in given.items()}
    save_file(given | {"causal": torch.tensor(1)}, folder / "flash_attn.safetensors")
    return folder / "flash_attn.safetensors"


# What a tool is called, the package that it needs, and what writes.
TOOLS = {
    "flashinfer": ("flashinfer", flashinfer),
    "flashinfer, safetensors": ("flashinfer", partial(flashinfer, safetensors=True)),
    "sglang": ("sglang", sglang),
    "transformers": ("transformers", transformers),
    "safetensors": ("safetensors", safetensors),
}

if __name__ == "__main__":
    import pytest

    root, places = Path(sys.argv[1]), {}
    with pytest.MonkeyPatch.context() as patch:
        for tool, (_, write) in TOOLS.items():
            place = write(root / tool.replace(", ", "_"), FLASH, patch)
            places[tool] = str(place.relative_to(root))
    (root / "places.json").write_text(json.dumps(places, indent=1) + "\n")
