"""The right names of the bugs of the sixteenth set, as patterns, written after all bugs."""

LOST = r"(key|keys|page|split) (at the end )?left out(?!, (as|other))|weights of keys by a factor"
ROWS_LOST = r"keys? (at the end )?left out(?!, as)"
MASK = r"another (mask|window)|mask that ends elsewhere|window or mask"
SEEN = rf"{MASK}|keys that the mask hides|sees keys up to"
TWICE = r"(key|keys|split) counted|weights of keys by a factor|^keys by a factor for each block"
READ = (
    r"keys read (again|twice|from|in another|at an offset|by another)|wrong page|32-bit offset"
    r"|K and V read (at an|from|in another|by another|some|with an address)|across requests"
)
REQUEST = rf"K and V of another request|{READ}"
K_READ = r"^K read (at an|from|in another|by another|with an address)|^K of the key"
V_ZERO = r"^V read as 0|output of a split lost|^V by a factor"
V_SCALES = r"^V by a factor|^V with scales|^V in .*wrong scale"
V_FACTOR = rf"{V_SCALES}|^V or the output by a factor|^the output by a factor"
OUT_ROWS = r"output by a factor.*each (row|query|head|sample|request)"
O = r"\bo (not )?rescaled|tiles rescaled wrongly|another factor in each row"
L = rf"^denominator of|\bl (accumulated|begins)|, in l alone|{OUT_ROWS}"
OWN = r"factor of each row's own"
SPLITS = rf"splits merged with wrong weights|{OWN}"
LANES = r"^lanes merged by l|relative to .*maximum|warps"
ROW = r"another row's output(?! is added)"
OTHER_ROW = rf"{ROW}|^Q of another row|^weights are those of another row"
ADDED = r"output is added|output of .* is added|^o begins with"
CHANNELS = r"^channels (wrong|mixed up)|channels of (V|the output|out)\b|^V read with"
QK = r"channels of (Q or K|Q|K) mixed up|^[QK] read with"
QK_FACTOR = r"channels of (Q or K|Q|K) by a factor"
SCALE = r"^wrong scale|^scores times|^[QK] by a factor"
SMALL = r"small weights|keys left out, other"
PADDING = r"padding in the denominator|sink in the denominator|of logit|^denominator of each"

_OF: dict[str, str] = {
    REQUEST: "the table's rows one entry shorter; three pages of the slot's last request; "
    "a page freed too early; the last page copied from another request",
    READ: "pages of 32 with the stride of pages of 16; a ring's third block not yet there",
    rf"{READ}|ring of": "a ring's old slots overwritten",
    rf"{READ}|slots of new keys|new keys are (appended|written)": (
        "new tokens in the slots of the page before"
    ),
    rf"{V_ZERO}|never written|value of a key|new keys the K": "V of the new tokens not yet written",
    V_ZERO: "V's first tile not arrived; the last third lost in o",
    rf"^K of another request|{K_READ}|{OWN}|weights of keys by a factor": (
        "K of the new tokens from another request"
    ),
    rf"{REQUEST}|K and V of another": "addresses that wrap",
    r"^K and V of another head|reads KV head": "groups one head too large; "
    "half of each tile from the neighbouring block",
    r"^V of another head|GQA heads interleaved": "V of the head modulo the KV heads",
    r"^V of another head|^V read (at an|with an address)": "V of the KV head before",
    r"^V .*transposed|^blocks of .*transposed|keys and channels|^V read as \[|^V in another": (
        "blocks of V not turned"
    ),
    K_READ: "half of K's tile three stages old",
    r"^K read as 0|^K by a factor": "K's last 8 rows of a tile of 32 not arrived",
    O: "half of o's channels not rescaled; the rescale of the next head",
    rf"{O}|small moves of the maximum": "small rescales of o skipped",
    rf"{L}|denominator with keys|{LANES}": "halves of l with maxima of their own",
    rf"{SMALL}|other tiles": "tiles with weights below a half skipped",
    L: "l is bf16 between tiles; l begun with the request before; 1 / l from its bits; "
    "one denominator for a group",
    rf"{L}|lane's channels": "l of two lanes of four",
    rf"{LANES}|splits weighted by l alone|{SPLITS}": "maxima of two lanes of four; "
    "o of four warps added as it is",
    PADDING: "l begun at 1, the maximum at 0",
    rf"{PADDING}|keys past the end": "zero keys up to a tile of 64",
    ADDED: "o begun with the head before; added to another request's output",
    TWICE: "the last tile of 48 a second time; the first split joined again; "
    "splits begin one key early",
    rf"{TWICE}|keys past the end|keys read again": "the last key for all missing ones",
    rf"{SPLITS}|another (row|head|query)'s lse": "log-sum-exps of splits transposed",
    rf"{SPLITS}|another split's lse": "the last split weighed as the one before",
    r"splits merged with (log-sum|wrong)": "log-sum-exps in bf16",
    rf"mixed log base(?!.*exp2 of)|{SPLITS}": "log2 sums joined by exp",
    r"partial outputs of another|another (row|head)'s lse": "partial outputs of the next head",
    rf"{SPLITS}|tiles rescaled wrongly": "the sum so far not added up",
    r"^V counted|^V by a factor": "a fix-up by two blocks",
    rf"(splits weighted|lanes merged) by their max|{SPLITS}": "splits by their maxima alone",
    LOST: "splits after the fifth not joined; every third tile of 24 claimed by nobody; "
    "token 0 taken for padding; a key between two splits left out",
    rf"{LOST}|{MASK}": "the length rounded down to whole pages; the tail's mask on every tile; "
    "lengths summed over requests",
    rf"{LOST}|{MASK}|mask is strict|does not see": "the length before the append",
    OTHER_ROW: "rows of all requests one row late; the last tile of rows moved",
    rf"{OTHER_ROW}|^Q is the first": "the first head's query for its whole group",
    rf"{OTHER_ROW}|^out in another layout": "packed rows stored as unpacked",
    rf"{ROW}|rows uninitialised": "rows past the last four from another request",
    CHANNELS: "even channels in place of odd ones; V's two numbers of a byte exchanged",
    rf"{ROW}|^channels wrong": "16 channels one head too far",
    r"^out clipped": "the output saturates",
    r"never written(?!, or)|rows uninitialised|^channels wrong": (
        "half of the last head of a group unwritten"
    ),
    V_FACTOR: "scaled up for a dropout that is off; V with K's scale",
    V_SCALES: "V's scales 16 channels late; V's scales of keys in a swizzle",
    r"^K in (?!another)|^K rounded": "K in 4 bits by groups of 32",
    r"^V clipped": "V clipped to what its first tile holds",
    rf"{SCALE}|^K with scales|^K in .*wrong scale": "K's scale of the next KV head",
    rf"^K with (a const|an off|wrong zero|its zero)|{OWN}": "zero points of K off twice",
    r"mean of V|^V less|offset of V|^V with (an off|wrong z|its z|means)|constant is added": (
        "V without its mean"
    ),
    r"^scores (accumulated|rounded to (?!steps)|and P)": "upper halves of sums over channels",
    r"^P (in|truncated)": "P cut to whole 127ths",
    r"^P in (?!steps)": "P of at most 1 in e4m3",
    r"^exp2 by|^weights are (another function|no exp)": "a line for exp2",
    rf"{SMALL}|^weights are another function": "weights below e^-3 as 0",
    r"^out was rounded to (?!steps)|^out in (?!another)": "the output by way of e4m3",
    SCALE: "scale of the width with its padding; scores over the layer's number, 3; "
    "queries by the logarithm of their place",
    rf"{SCALE}|log2\(e\) left out": "exp2 of natural scores",
    rf"{QK_FACTOR}|^scale left out.*channels": "the scale between two steps of channels",
    rf"{QK}|halves interleaved": "channels of K by neighbours, of Q by halves",
    r"^RoPE (of K\b|some places off)": "K not turned back after an eviction",
    r"^RoPE (of [QK]\b|some places off|applied once more)": "Q turned by its place once more",
    r"^wrong scale, another|^scores times|^Q divided|^Q by a factor": "Q normed once more",
    QK_FACTOR: "smoothing factors in K alone",
    rf"^K (less|with (its )?mean)|bias of K|^keys by a factor for each block|{OWN}": (
        "the mean key of each tile taken off"
    ),
    r"^Q (and K )?less|^Q with means|offset of Q": "the mean query taken off for good",
    rf"channels of (Q or K|Q|K) left out|{QK_FACTOR}|^[QK] read as 0.*channel": (
        "the channels of places left out"
    ),
    rf"channels of (Q or K|Q|K) counted|{QK_FACTOR}": "the channels of places added twice",
    QK: "the second box of K's channels reads the first; K's chunks where a swizzle put them",
    r"^K read (by another stride|with a row|some elements)|row stride|^channels of K read": (
        "K's tile read without its padding"
    ),
    rf"{SEEN}|causal mask left out": "rows of a tile of 16 see what its last row sees; "
    "a packed row masked as a query; early rows see to the end of the chunk",
    rf"{SEEN}|{ROWS_LOST}|custom mask left out": "bits of the mask read with whole bytes a row",
    rf"{SEEN}|{ROWS_LOST}": "a ring's order of chunks in the mask",
    rf"{MASK}|{ROWS_LOST}|does not see": "rows of a tile of 8 see what its first row sees",
    rf"{MASK}|{ROWS_LOST}": (
        "drafted tokens blind to each other; a window of the last query for all"
    ),
    rf"{SEEN}|window left out": "a window rounded up to whole tiles",
    r"^soft cap of another": "the cap before the scale; the cap in base 2",
    r"^soft cap( by|: scores clip)|^scores clamped": "a clamp for the cap",
    r"^ALiBi slopes": "slopes by KV head; slopes for a power of two heads",
    r"^ALiBi (by another|slopes)": "distances without a sign from a chunk's row",
    r"^sinks (once|counted)|^sinks .*times|^sink in the": "a sink in each split",
    r"^sinks (of|by|in|read)|^sinks .*(head|order)": "sinks in an order of packed rows",
}
PATTERNS: dict[str, str] = {bug: p for p, bugs in _OF.items() for bug in bugs.split("; ")}
"""By the name of a bug: what a right name of it matches."""
