"""The right names of the bugs of the seventeenth set, as patterns, written after all bugs."""

LOST = r"keys? (at the end )?left out(?!, as)"
SOME_LOST = r"keys? left out(?!, as)"
ENDS = r"mask that ends elsewhere"
SAME_LOST = rf"keys? (at the end )?left out(?!, (as|other))|{ENDS}"
SEEN = r"keys that the mask hides|^hidden keys(?! take part with)"
WINDOW = rf"another window(?!: keys that)|{SOME_LOST}"
TWICE = r"keys? counted (twice|2)|keys read twice|^(weights of )?keys by a factor"
READ = (
    r"keys read (again|twice|from|in another|at an offset|by another)|^K and V read (at|from|by"
    r"|in another|some|with an address|with pages)|^wrong page|some keys read again"
)
REQUEST = rf"K and V of another request|{READ}"
PAST = r"keys past the end|keys behind the last|^padding: keys"
K_READ = r"^K read (at an|from|in another|by another|with an address)|^K of the key"
V_READ = r"^V read (at an|from|in another|by another|with an address)|^V of the key"
V_ZERO = r"^V read as 0|output of a split lost|^value of a key read as 0"
K_SCALES = r"^K with scales|^K .*wrong scale|^K by a factor"
QK_SCALES = rf"{K_SCALES}|^(channels of )?(Q or K|Q) by a factor"
V_SCALES = r"^V with scales|^V .*wrong scale|^V by a factor|^V divided by its largest"
SCALE = (
    r"^wrong scale(?!, another for each (key|KV|sample|request))|^scores times(?!.*(below|plus))"
)
FEW = r"(few|[1-6]) bits(?!.*wraps)|int[234](?!.*wraps)|e2m1|fixed steps"
ROW = r"another row's output(?! (is added|in some splits))|^the output of (head|query|sample)"
SOME = r"another row's output, in some channels|^channels (wrong|mixed up)"
KV_HEADS = r"^K and V of another head|GQA heads|reads KV head"
LAYOUT = r"(read with pages )?in another layout"
SWIZZLED = r"read with (its channels|another swizzle|two registers)"
OUT_ROWS = r"output by a factor.*each (row|query|head|sample)"
L = rf"^denominator (of|with|by)|, in l alone|\bl accumulated|{OUT_ROWS}"
O = r"\bo (not )?rescaled|tiles rescaled wrongly|another factor in each row"
BY_ROW = r"splits merged with wrong weights|tiles rescaled wrongly|factor of each row's own"
LSE = rf"{BY_ROW}|lse of another row|another (row|head)'s lse"
PARTIAL = r"partial outputs of another|another row's output in some splits"
SINKS = r"^sinks (of|not rescaled|scaled)"
CAP = r"soft cap (of|by) another"
PLACES = r"RoPE of (K|Q or K|K or Q) by|RoPE (some places|of .*wrong places)|^K turned"

_OF: dict[str, str] = {
    # what is asked for
    r"sinks? with a value": "a sink with the first value",
    SINKS: "a group's sinks by its KV head; sinks in powers of two; sinks scaled like scores",
    rf"{SINKS}|{L}": "sinks by the first tile's maximum",
    rf"{SEEN}|after the mask": "hidden keys capped like all others",
    CAP: "a cap before the scale; a cap without its division; a cap in units of log2",
    r"ALiBi by another distance": "slopes times the place in a tile; "
    "distances from the row in the chunk; distances of at most 32",
    r"ALiBi slopes of": "slopes of the next power of two heads",
    # formats
    rf"^V (in|rounded to).*({FEW})|^V is kept": "V in four bits by 16 channels; "
    "V in two bits but for the last 32",
    rf"^K (in|rounded to).*({FEW})|^K is kept": "K in e2m1 by 16 channels",
    rf"^[QK] {SWIZZLED}|channels of (Q or K|Q|K) mixed": "K's halves of bytes read as pairs",
    rf"{K_SCALES}|another for each key": "K's scales of the key before",
    K_SCALES: "K's scales of the block before",
    QK_SCALES: "K's scales of the channel before",
    V_SCALES: "V with its page's mean scale",
    rf"{V_SCALES}|^V or the output by|^(the )?output by a factor": (
        "V's scale of the request before"
    ),
    r"^P (truncated|in steps|cut|in int8|in .*bits)": "P cut to int8",
    r"^P in (e4m3|.*bits)|^P clipped|clamped.* at most": "P saturates at the first keys' scale",
    r"^V without its sign|^V with wrong zero|^V in int8|^V through": "V's int8 read without a sign",
    r"bits.* taken for|^V through|^V read as (?!0)": "V in bf16 read as fp16",
    r"^K and V (by a factor|with scales|in .*wrong scale)": "the cached prefix without its scales",
    r"^Q clipped|^Q in few bits": "Q clipped at 1.2 of its size",
    # masks
    rf"{SEEN}|{ENDS}|sees keys up to": "tiles on the diagonal seen whole",
    rf"{SEEN}|{ENDS}|packed rows|rows packed": "packed rows masked without a division",
    rf"{LOST}|{ENDS}": "a diagonal from corner to corner",
    rf"{SOME_LOST}|page left out|split left out": "odd heads skip every third tile",
    rf"{LOST}|mask that hides them": "drafts see the prompt and themselves alone; "
    "each split masked from its own end",
    SAME_LOST: "lengths shorter by five for each request; seven splits of too few keys",
    rf"{SEEN}|{LOST}|another mask(, read|.*(each 8|bits))": "bits of a mask from the other end",
    rf"{SEEN}|{ENDS}|{LOST}|another mask, read": "the row of the mask is the head",
    rf"{SEEN}|causal mask left out|masked scores": "a mask of truth values added as numbers",
    WINDOW: "the window starts at the next tile; all rows take the last row's window",
    rf"{SEEN}|{ENDS}|another window": "the window to the right in place of the left",
    rf"{SEEN}|{ENDS}|causal mask left out": "the window open at the right",
    rf"{SEEN}|first (key|keys|\d+ keys)( is| are)? always seen": (
        "the first four keys outlive the window"
    ),
    # rows
    KV_HEADS: "KV head is h + 1 over the group; KV head is h over the KV heads",
    ROW: "heads of two ranks one after the other",
    rf"{ROW}|out in another layout": "request and head of a block mixed up",
    rf"{ROW}|^Q of another row|^Q, rows|out in another layout": (
        "rows of packed groups unpacked the other way"
    ),
    rf"{ROW}|^Q of another row|^Q is .*of its group": "heads of a group write over each other",
    rf"{ROW}|^Q of another row": "odd rows with Q of the row before",
    r"^Q of another row": "packed queries one row late",
    READ: "each request starts one key earlier; blocks of 32 keys at the stride of 16; "
    "a bit mask for a page of 24",
    rf"^V {LAYOUT}|^V read (as \[|in another|by another|with an address|some)|^V {SWIZZLED}"
    r"|^V.*transposed|^channels of V|parts interleaved": "V of all heads channel by channel",
    rf"^K read (some|by another stride|with an address)|^K {SWIZZLED}|^K of another head, in some"
    r"|^K.*elements off": "K half a head further",
    r"^V is (the mean of all KV|a (mean|sum) of .*heads)|heads are averaged": (
        "V's heads pooled into their mean"
    ),
    r"^out (stored|in another layout)|row stride|stored with a stride|^channels mixed up with": (
        "rows stored at a padded stride"
    ),
    rf"^channels (wrong|mixed up|of V)|^V {SWIZZLED}|registers": (
        "pairs of a quad in another order"
    ),
    SOME: "last 16 channels of the head before; odd channels of the head after",
    r"^channels? (wrong|0)|first channel|in place of the output": (
        "log-sum-exp over the first channel"
    ),
    r"\b([Qq]|query|queries)( \w+)? (is|are) added|residual": "Q added to the output",
    r"value of the first key|rows? (never written|uninitialised)|never written"
    r"|keys (at the end )?left out(?!, (as|other))": "odd heads keep the first value",
    L: "1 / l by a straight line",
    # splits
    rf"(with|their) log-sum-exps in|{BY_ROW}": "partial log-sum-exps kept in bf16",
    LSE: "shares of splits of the head before; sums of splits read row by row",
    PARTIAL: "the second split's output of the head before; "
    "the last split's output of the request before",
    BY_ROW: "joined one by one, the sum kept from the first; "
    "joined one by one, the larger sum kept",
    rf"{TWICE}|first split counted twice": "the shared prefix weighs double",
    TWICE: "splits overlap by eight keys",
    rf"not yet divided|splits merged by 2|denominator left out|not normalised|{BY_ROW}": (
        "parts joined before their division"
    ),
    rf"{L}|keys (?!missing).*in the denominator": "an empty split with an old sum; "
    "the first tile twice in l",
    rf"{L}|keys .*in the denominator": "l of even keys, doubled",
    rf"splits merged unweighted|{BY_ROW}": "pairs of splits averaged",
    rf"{L}|lse of another row": "totals of the largest head; l of the head before",
    # tables
    r"^V of another request|^V read (from|in another)|^V.*across requests": (
        "copy on write copied K alone"
    ),
    REQUEST: "one page given to all requests",
    PAST: "rejected drafts still seen",
    rf"{PAST}|{TWICE}|keys read again": "the last page read to its end, old keys in it",
    rf"new keys (are appended .*slot|hold 0)|slots of new|{READ}|^(keys|K and V) read as 0": (
        "new keys one slot early"
    ),
    rf"^K {LAYOUT}|^K read (with pages|as \[|in another|by another|some)|^K {SWIZZLED}"
    r"|^K.*transposed|^channels of K": "K's pages in vectors of 16 for 8",
    rf"^K and V {LAYOUT}|^K and V read (with pages|by another stride)": (
        "pages of HND read as NHD"
    ),
    rf"{SOME_LOST}|small weights dropped|weights of keys dropped(?!.*dropout)": (
        "keys chosen by the last query"
    ),
    K_READ: "K's two buffers taken in turn the wrong way; odd keys scored by the key before",
    r"^K read as 0|scores of these keys are 0": "the last K of each tile not loaded",
    r"^channels (of V|wrong)|^V (read|of the key).*channels": "upper channels of V a tile late",
    r"^channels of K|^K (read|of the key).*channels": "upper channels of K a tile early",
    # tiles
    O: "o starts over at a new maximum; o rescaled by the head before",
    rf"{O}|small moves of the maximum": "o forgets small moves of the maximum",
    rf"{O}|over the row's own l": "o normalised in each tile",
    r"o and l (not )?rescaled|rescaled (by exp2|wrongly)|mixed log base": (
        "o and l rescaled in powers of two"
    ),
    rf"{V_ZERO}|, in the output alone": "the last tile not in o",
    r"small weights|keys left out, other (keys|tiles) in each row": (
        "tiles of small weights skipped"
    ),
    r"^lanes merged by l alone|merged by l alone|relative to .*maximum": (
        "two warps added whatever their maxima"
    ),
    r"^exp2 by|scores rounded to steps|^weights are (another function|no exp)": (
        "exp2 from a table of 16"
    ),
    r"clamped(?!.* at most)": "no weight under e to the -4",
    V_READ: "the last tile of V is the first",
    # turns
    PLACES: "K's places count from the page; a context shift applied twice",
    r"RoPE in the other convention": "RoPE by pairs where halves were asked for",
    r"^K of another head|^channels of K.*head": "K's last quarter from the first KV head",
    r"^V is K|K read for V|^V read from the other tensor": "V taken from K",
    rf"^V {SWIZZLED}|^channels of V": "V's chunks swapped in odd keys",
    rf"^K.*transposed|^K {LAYOUT}|^K read as \[|^K {SWIZZLED}": "blocks of K turned",
    r"Hadamard|^Q turned": "a Hadamard matrix on Q alone",
    r"^K divided by its|^K by a factor|another for each key": "K normed once more",
    SCALE: "scores by the logarithm of the place; temperatures that grow with the head",
    r"^(a )?bias (by|that falls|of positions)": "a bias by octaves of the distance",
}
PATTERNS = {bug: pattern for pattern, bugs in _OF.items() for bug in bugs.split("; ")}
"""The name of a bug: a pattern that a right name for it matches."""
