"""The classes of mistakes that an attention kernel can make: one vocabulary for all who name one.

The probe, the verdict and the labels of planted bugs use these words, so that what one of them says
can be compared with what another knows.
"""

NONDETERMINISTIC = "nondeterministic"
BATCH = "batch-dependent"
MEMORY = "foreign or unwritten memory"
INDEX_Q = "index map of Q"
INDEX_K = "index map of K"
INDEX_V = "index map of V"
INDEX_OUT = "index map of the output"
MASK = "mask"
SCORES = "scores"
WEIGHTS = "weights and statistics"
MERGE = "merge of splits"
VALUES = "value product"
STORE = "store"
LSE = "LSE"
LESS_EXACT = "less exact"

CLASSES: dict[str, str] = {
    NONDETERMINISTIC: "equal calls give other bits",
    BATCH: "a request's output depends on the other requests",
    MEMORY: "what the output reads belongs to nobody: unused pages, keys past the length",
    INDEX_Q: "a row uses the query of another row, head, request or channel",
    INDEX_K: "a score uses the key of another slot, head, request or channel",
    INDEX_V: "a weight meets the value of another slot, head, request or channel",
    INDEX_OUT: "a right row or channel is stored in another place",
    MASK: "a row sees keys that it should not see, or misses keys",
    SCORES: "the scores are not the products of Q and K with the scale, cap and slopes asked for",
    WEIGHTS: "right scores give wrong weights: maximum, exponential, rescale, sum, sink",
    MERGE: "the parts of a row are right, and joined wrongly",
    VALUES: "right weights and right values give a wrong sum",
    STORE: "a right row is scaled, clipped, rounded or left out when it is stored",
    LSE: "the output is right and the log-sum-exp is not",
    LESS_EXACT: "more is rounded than the formats need",
}
