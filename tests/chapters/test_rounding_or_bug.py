"""The chapter's kernels answer the probe: right ones without a defect, a mutant with its class."""

import pytest

from labkernels import defects
from labkernels.chapters import rounding_or_bug as chapter


@pytest.mark.parametrize(
    ("kernel", "layout"), [("decode_mma", "paged_decode"), ("prefill_mma", "ragged")]
)
def test_a_right_kernel_has_no_defect_and_refuses_nothing(kernel, layout):
    sheet = chapter.sheet(kernel, layout, kernel)
    assert sheet.verdict == "no defect"
    assert sheet.refused == []
    assert sheet.facts["mask"].value == "none"


def test_the_probe_reads_the_class_of_a_bug_that_one_output_does_not_give():
    sheet = chapter.sheet(chapter.mutant("wrong merge base"), "paged_decode", "mutant")
    assert [found.kind for found in sheet.defects] == [defects.MERGE]
    rows = chapter.facts([sheet])
    assert rows[0] == {"fact": "defect", "mutant": f"{defects.MERGE}: {sheet.defects[0].where}"}
