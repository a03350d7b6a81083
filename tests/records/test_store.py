import pytest

from labkernels.records import datapackage, store


def test_rows_come_back_as_they_were_written(tmp_path, row):
    path = tmp_path / "run.csv"
    note = {**row, "metric": "refused", "note": 'group 16: "unsupported", they say'}
    third = {**row, "value": 0.1 + 0.2}
    assert store.append(path, [row]) == 1
    assert store.append(path, [note, third]) == 2
    assert store.read(path) == [row, note, third]
    path.write_text(path.read_text().replace("0.000439", "nan", 1))
    with pytest.raises(ValueError, match=r"run.csv, line 2: value is 'nan'"):
        store.read(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        ValueError, match=r"run.csv, line 1: columns \['a', 'b'\] belong to no table"
    ):
        store.append(path, [row])
    assert path.read_text() == "a,b\n1,2\n"


def test_one_bad_row_writes_nothing(tmp_path, row):
    path = tmp_path / "run.csv"
    with pytest.raises(ValueError, match="value is nan"):
        store.append(path, [row, {**row, "value": float("nan")}])
    assert not path.exists()
    store.append(path, [row])
    with pytest.raises(ValueError, match="missing"):
        store.replace(path, [{**row, "unit": ""}])
    assert store.read(path) == [row]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_file_cut_inside_its_last_line_is_refused(tmp_path, row, cut):
    path = tmp_path / "run.csv"
    store.append(path, [row, row])
    path.write_bytes(path.read_bytes()[:-cut])
    cut_there = r"\Arun.csv, line 3: the file is cut in the middle.*\Z"
    for act in (store.read, lambda path: store.append(path, [row])):
        with pytest.raises(ValueError, match=cut_there):
            act(path)
    with pytest.raises(ValueError, match=cut_there):
        datapackage.describe(tmp_path)


@pytest.mark.parametrize("damage", [b"\xff", b'"', b"\0"])
def test_a_byte_that_no_table_holds_is_told_in_one_line(tmp_path, row, damage):
    path = tmp_path / "run.csv"
    store.append(path, [row] * 2)
    head, _, rows = path.read_bytes().partition(b"\n")
    path.write_bytes(head + b"\n" + damage + rows[1:])
    with pytest.raises(ValueError, match=r"\Arun.csv, line [^\n]*\Z"):
        store.read(path)


def test_times_divided_by_ten_are_noticed(tmp_path, row):
    path = tmp_path / "performance" / "run.csv"
    store.append(path, [row])
    datapackage.write(tmp_path)
    assert store.read(path) == [row]
    path.write_text(path.read_text().replace("0.000439", "0.0000439"))
    with pytest.raises(ValueError, match=r"performance/run.csv is not the file that datapackage"):
        store.read(path)
    assert store.read(path, described=False) != [row]
    # Only a new description of everything accepts the change; a recording of another file does not.
    other = tmp_path / "performance" / "other.csv"
    store.append(other, [row])
    datapackage.write(tmp_path, [other])
    assert store.read(other) == [row]
    with pytest.raises(ValueError, match="is not the file"):
        store.read(path)
    datapackage.write(tmp_path)
    assert store.read(path)[0]["value"] == 4.39e-5


def test_a_file_that_is_not_described_and_a_damaged_description_are_refused(tmp_path, row):
    datapackage.write(tmp_path)
    path = tmp_path / "run.csv"
    store.append(path, [row])
    with pytest.raises(ValueError, match="run.csv is not the file that datapackage.json describes"):
        store.read(path)
    for damaged in ("{", "[]", '{"resources": [{"path": "run.csv"}]}', '{"resources": 3}', "\0"):
        (tmp_path / "datapackage.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"\Adatapackage.json is damaged.*--describe[^\n]*\Z"):
            store.read(path)


def test_a_table_is_found_by_its_name_wherever_it_lies(tmp_path, row):
    assert store.path_of("prefill") == store.DATA_DIR / "performance" / "prefill.parquet"
    assert store.path_of("chaos") == store.DATA_DIR / "accuracy" / "chaos.csv"
    assert store.path_of("prefill", tmp_path) == tmp_path / "performance" / "prefill.parquet"
    assert store.path_of("tensor_core_sm90.npz").parent.name == "hardware"
    store.append(store.path_of("mine", tmp_path, "accuracy"), [row])
    assert store.read(store.path_of("mine", tmp_path)) == [row]
    assert store.read("prefill") == store.read(store.path_of("prefill"))


def test_newest_and_select(row):
    later = {**row, "started_utc": "2026-12-02T00:00:00Z", "dtype": "fp16"}
    assert store.runs([row, later]) == ["2026-12-02T00:00:00Z", row["started_utc"]]
    assert store.newest([row, later, row]) == [later]
    assert store.newest([]) == []
    assert store.select([row, later], {"dtype": "fp16", "batch": 57}) == [later]


def test_every_committed_table_is_valid():
    paths = sorted(path for end in ("csv", "parquet") for path in store.DATA_DIR.rglob(f"*.{end}"))
    assert {path.parent.name for path in paths} == {"performance", "accuracy", "hardware"}
    for path in paths:
        rows, table = store.read_file(path)
        assert tuple(rows[0]) == table.columns
