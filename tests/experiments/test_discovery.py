import pytest

from labkernels import experiments


def test_every_experiment_has_its_four_names():
    found = experiments.discover()
    assert {"compiler_reports", "decode_tensor_cores"} <= set(found)
    for name, module in found.items():
        assert name == module.NAME
        assert module.TITLE
        assert f"{name}.csv" == module.DATA_FILE
        assert callable(module.run)


def test_an_unknown_experiment_is_named_with_those_there_are():
    with pytest.raises(ValueError, match=r"experiment is 'nope'; allowed: .*decode_tensor_cores"):
        experiments.find("nope")


def test_progress_lines_carry_the_elapsed_time():
    said = []
    experiments.Options(say=said.append).progress("half way")
    assert said[0].startswith("[")
    assert said[0].endswith(" s] half way")
