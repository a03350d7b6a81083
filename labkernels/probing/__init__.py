"""The datasheet of an attention kernel, read from outside: it chooses inputs.

`probe` calls a function with inputs each of which isolates one path through attention. Which of the
experiments fail says where a mistake lies, and the numbers read in them say what it is.
"""

from labkernels.probing.report import Datasheet, Defect, Fact
from labkernels.probing.sheet import probe

__all__ = ["Datasheet", "Defect", "Fact", "probe"]
