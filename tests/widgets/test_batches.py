"""The explorer of batches shows the planners' own cuts, and no cut where the rule is not known."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import node
import pytest

from labkernels import hardware
from labkernels.planners import changed
from labkernels.widgets import batches

CHOICES = [
    {"gpu": hardware.gpu(key).name, "library": library, "mix": mix, "keys": "2048", "size": size}
    for key, library, mix, size in itertools.product(
        ("h200", "a100"), batches.WAYS, batches.MIXES, ("2", "8", "64")
    )
]


@pytest.fixture(scope="module")
def found(needs_node):
    script = Path(__file__).parent / "scripts" / "batches_of_choices.mjs"
    return node.run(script, given={"data": batches.data(), "choices": CHOICES})


def test_a_page_shows_what_the_planners_say(found):
    said = {"parts": 0, "reasons": 0}
    for choice, page in zip(CHOICES, found, strict=True):
        gpu = next(g for g in map(hardware.gpu, batches.GPUS) if g.name == choice["gpu"])
        planner, parts = batches.WAYS[choice["library"]], batches.MIXES[choice["mix"]]
        lengths = tuple(2048 // parts[i % len(parts)] for i in range(int(choice["size"])))
        batch = replace(batches.ONE, kv_lens=lengths)
        if page["reason"]:
            with pytest.raises(ValueError, match=re.escape(page["reason"])):
                planner(batch, gpu)
            said["reasons"] += 1
            continue
        cut = planner(batch, gpu)
        other = [bool(changed(planner(batch.alone(i), gpu), cut, (i,))) for i in range(batch.size)]
        assert page["parted"] == sum(other)
        assert [row[2] for row in page["rows"]] == [cut.label(i) for i in range(len(page["rows"]))]
        said["parts"] += any(other)
    assert min(said.values()) > 10
