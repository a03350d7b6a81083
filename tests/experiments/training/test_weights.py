"""The small model that is shipped is the one whose loss was noted."""

from labkernels.experiments.training import losses, ways, weights


def test_the_shipped_model_has_nearly_the_loss_that_was_noted():
    """Of another version of Python the held-out text is another."""
    loaded, known = weights.load()
    loss = losses.judged(loaded, ways.WAYS["torch fp32"](), weights.SMALL, "cpu")
    assert abs(loss - float(known["held out"])) < 0.1
