"""The backward experiment on the CPU build: what is measured is checked, and its rows fit."""

import pytest

from labkernels.experiments import _backward_cell as cell
from labkernels.experiments import backward
from labkernels.measure.backward_cases import backward_case
from labkernels.measure.backward_judge import BackwardJudge
from labkernels.measure.timing import Quartiles
from labkernels.records import schema
from labkernels.workload import Backward

WORKLOADS = {
    "causal": Backward((96, 0, 130), (96, 7, 130), 2, 2, 64, causal=True),
    "grouped": Backward((64, 33), (100, 20), 6, 2, 64),
}
TIMES = Quartiles(1e-3, 1e-3, 1e-3, 5)


@pytest.fixture(params=WORKLOADS)
def workload(request):
    return WORKLOADS[request.param]


@pytest.mark.parametrize("name", ["backward_mma", "backward_mma ordered"])
def test_right_gradients_pass_and_their_rows_fit(workload, name):
    case, result = backward_case(workload, seed=0, device="cpu"), cell.CellResult()
    contender = cell.contenders()[name]
    item = cell.prepare(contender, case, result)
    cell.judge_one(contender, item, TIMES, BackwardJudge(case), result)
    assert not result.words
    result.words = [(contender, "refused", "it says so")]
    rows = backward.rows_of(workload, result)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rate = next(row for row in rows if row["metric"] == "rate")
    assert rate["value"] == pytest.approx(workload.flops / 1e-3)
    heads = [row for row in rows if row["metric"].startswith("dk_error, head")]
    assert len(heads) == workload.kv_heads
    assert all(0 < row["value"] < 0.1 for row in heads)


def wrong_gradients():
    def of_another_row(gradients):
        gradients[0][0] = gradients[0][1]

    def not_scaled(gradients):
        gradients[1].mul_(8.0)

    def not_written(gradients):
        gradients[2][-1, 0, 3] = float("nan")

    return [of_another_row, not_scaled, not_written]


@pytest.mark.parametrize("spoil", wrong_gradients())
def test_wrong_gradients_do_not_pass(workload, spoil):
    case = backward_case(workload, seed=0, device="cpu")
    item = cell.prepare(cell.contenders()["backward_mma"], case, cell.CellResult())
    item.run()
    judge = BackwardJudge(case)
    gradients = item.gradients()
    assert all(e.passed for e in judge(gradients, case.out, case.lse2, cell.PEER_CHAIN).values())
    spoil(gradients)
    errors = judge(gradients, case.out, case.lse2, cell.PEER_CHAIN)
    assert not all(error.passed for error in errors.values())


def test_peers_on_the_cpu_give_gradients_that_pass(monkeypatch):
    """SDPA's own gradients, of whatever backend a CPU has, through the same judge."""
    from labkernels.measure import backward_peers

    work = Backward((64, 64), (64, 64), 2, 2, 64)
    case = backward_case(work, seed=0, device="cpu")
    try:
        step = backward_peers.PEERS["torch_fa2"].prepare(case)
    except backward_peers.Refused as refused:
        pytest.skip(str(refused))
    step.run()
    errors = BackwardJudge(case)(step.gradients(), step.out, None, cell.PEER_CHAIN)
    assert set(errors) == {"dq", "dk", "dv"}
    assert all(error.max_abs < 0.1 for error in errors.values())


def test_a_peer_that_takes_dense_tensors_refuses_ragged_ones():
    from labkernels.measure import backward_peers

    case = backward_case(WORKLOADS["causal"], seed=0, device="cpu")
    with pytest.raises(backward_peers.Refused, match="lengths differ"):
        backward_peers.PEERS["torch_fa2"].prepare(case)


def test_the_grid_is_the_papers():
    cells = backward.grid()
    assert len(cells) == 24
    assert {sum(work.q_lens) for work in cells} == {16384}
    assert {work.q_heads * work.head_dim for work in cells} == {2048}
