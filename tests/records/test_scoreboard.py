from dataclasses import replace

import pytest

from labkernels.records import schema, scoreboard, store

WORKLOAD = dict(batch=57, kv_len=8192, q_heads=32, kv_heads=8, head_dim=128, page_size=16)


def test_a_target_without_peers_asks_for_a_time_or_one_of_at_most(target, row):
    alone = replace(target, peers=(), minimum_ratio=0.0)
    limited = replace(target, peers=(), maximum=1.5e-4)
    for asked in (alone, limited):
        assert scoreboard.score(asked, "bf16", []).status == "not measured"
    for asked, time_s, status, words in (
        (alone, 1e-4, "met", "runs"),
        (limited, 1.5e-4, "met", "at most 0.1500 ms"),
        (limited, 1.6e-4, "NOT MET", "at most 0.1500 ms"),
    ):
        score = scoreboard.score(asked, "bf16", [timed(row, "decode_mma", time_s)])
        assert score.status == status
        assert words in scoreboard.table([score])


@pytest.fixture
def target():
    return scoreboard.Target(
        id="case",
        chapter="tensor_cores_on_and_off",
        title="the case",
        experiment="decode_tensor_cores",
        workload=WORKLOAD,
        kernels=("decode_mma", "decode_mma_n8"),
        peers=("fa2", "auto"),
        dtypes=("bf16",),
        metric="time_graph",
        statistic="median",
        minimum_ratio=0.99,
    )


def test_every_target_of_a_recorded_experiment_has_been_measured():
    scores = [s for s in scoreboard.scoreboard() if store.path_of(s.target.experiment).exists()]
    missing = [s for s in scores if s.status == scoreboard.NOT_MEASURED]
    assert [s.target.id for s in missing] == []


def timed(row, kernel, value, started="2026-12-01T09:30:00Z"):
    return {**row, "kernel": kernel, "value": value, "started_utc": started}


def test_the_best_of_ours_meets_the_best_of_theirs(row, target):
    rows = [
        timed(row, "decode_mma", 5e-4),
        timed(row, "decode_mma_n8", 4e-4),
        timed(row, "fa2", 4.4e-4),
        timed(row, "auto", 2e-3),
        {**timed(row, "fa2", 1e-9), "statistic": "q25"},
        {**timed(row, "fa2", 1e-9), "metric": "time_eager"},
        {**timed(row, "fa2", 1e-9), "batch": 1},
        {**timed(row, "fa2", 1e-9), "dtype": "fp16"},
    ]
    score = scoreboard.score(target, "bf16", rows)
    assert (score.kernel, score.peer, score.status) == ("decode_mma_n8", "fa2", "met")
    assert score.ratio == pytest.approx(1.1)
    assert score.commit == "abc1234def"


def test_rows_of_another_cache_do_not_count(row, target):
    rows = [timed(row, "decode_mma", 5e-4), timed(row, "fa2", 4e-4)]
    rows.append({**timed(row, "decode_mma", 1e-4), "note": "57 x 8192, e5m2 cache"})
    assert scoreboard.score(target, "bf16", rows).status == "met"
    assert scoreboard.score(replace(target, without="e5m2"), "bf16", rows).status == "NOT MET"


def test_a_missed_target_stands_beside_its_profile(row, target, tmp_path):
    """The profile has the counters of the longest kernel, at the target's own workload only."""
    counts = {"time": 1e-4, "tensor_pipe": 40.0, "l2": 71.5, "stall_gmma": 3.0, "stall_wait": 1.0}
    base = {**row, "experiment": "counters", "q_len": 1, "causal": False, "statistic": "exact"}
    counted = [
        {**base, "kernel": "fa2 decode", "note": "main", "metric": name, "value": value}
        for name, value in counts.items()
    ]
    counted.append(
        {**base, "kernel": "fa2 decode", "note": "merge", "metric": "time", "value": 1e-6}
    )
    counted.append({**counted[1], "batch": 1, "value": 99.0})
    timed_rows = [timed(row, "decode_mma", 5e-4), timed(row, "fa2", 4e-4)]
    (tmp_path / "performance").mkdir()
    store.append(tmp_path / "performance/decode_tensor_cores.parquet", timed_rows)
    table = schema.PREFILL_MEASUREMENTS
    store.append(tmp_path / "performance/missed_targets.parquet", counted, table)
    (score,) = scoreboard.scoreboard([target], tmp_path)
    assert score.profiles == {"fa2": counts}
    assert "profile of fa2: L2 72 %, tensor pipe 40 %; waits for gmma 75 %, wait 25 %" in (
        scoreboard.table([score])
    )
    (met,) = scoreboard.scoreboard([replace(target, minimum_ratio=0.5)], tmp_path)
    assert met.profiles == {}


def test_a_ratio_is_never_taken_across_runs(row, target):
    later = "2026-12-02T00:00:00Z"
    rows = [
        timed(row, "decode_mma", 5e-4),
        timed(row, "fa2", 4e-4),
        timed(row, "decode_mma", 1e-4, later),
    ]
    score = scoreboard.score(target, "bf16", rows)
    assert score.started_utc == "2026-12-01T09:30:00Z"
    assert (score.status, score.ratio) == ("NOT MET", pytest.approx(0.8))
    score = scoreboard.score(target, "bf16", [*rows, timed(row, "fa2", 2e-4, later)])
    assert (score.status, score.ratio) == ("met", pytest.approx(2.0))


def test_what_was_refused_or_never_run_is_not_measured(row, target):
    assert scoreboard.score(target, "bf16", []).status == "not measured"
    refused = {**timed(row, "fa2", 1), "metric": "refused", "note": "group 16"}
    score = scoreboard.score(target, "bf16", [timed(row, "decode_mma", 1e-4), refused])
    assert (score.status, score.note) == ("not measured", "fa2: group 16")


def test_errors_of_two_policies_are_compared_by_size(row, target):
    fields = {"peers": target.kernels, "policy": "p=input_x2", "peer_policy": "p=input"}
    fields |= {"metric": "error", "statistic": "bias", "minimum_ratio": 50}
    errors = scoreboard.Target(**{**vars(target), **fields})
    rows = [
        {**timed(row, kernel, value), "metric": "error", "statistic": "bias"}
        | {"policy": policy, "unit": "1"}
        for kernel, policy, value in (
            ("decode_mma", "p=input", -6e-5),
            ("decode_mma_n8", "p=input", -7e-5),
            ("decode_mma", "p=input_x2", 1e-6),
            ("decode_mma_n8", "p=input_x2", -2e-6),
            ("decode_mma_n8", "p=fp32", 1e-9),
        )
    ]
    score = scoreboard.score(errors, "bf16", rows)
    assert (score.ours, score.theirs, score.unit) == (1e-6, -6e-5, "1")
    assert (score.ratio, score.status) == (pytest.approx(60), "met")
    assert "-6e-05" in scoreboard.table([score])


def test_the_board_reads_a_folder(tmp_path, row):
    (tmp_path / "targets.toml").write_text(
        """
[defaults]
experiment = "decode_tensor_cores"
metric = "time_graph"
statistic = "median"
chapter = "tensor_cores_on_and_off"
[[target]]
id = "case"
title = "the case"
workload = {batch=57, kv_len=8192, q_heads=32, kv_heads=8, head_dim=128, page_size=16}
kernels = ["decode_mma"]
peers = ["fa2"]
dtypes = ["fp16", "bf16"]
minimum_ratio = 1.0
"""
    )
    assert [s.status for s in scoreboard.scoreboard(data_dir=tmp_path)] == ["not measured"] * 2
    store.append(
        store.path_of("decode_tensor_cores", tmp_path),
        [timed(row, "decode_mma", 4e-4), timed(row, "fa2", 5e-4)],
    )
    scores = scoreboard.scoreboard(data_dir=tmp_path)
    assert [s.status for s in scores] == ["not measured", "met"]
    text = scoreboard.table(scores)
    assert "1.250" in text
    assert text.endswith("1 met, 0 NOT MET, 1 not measured")
