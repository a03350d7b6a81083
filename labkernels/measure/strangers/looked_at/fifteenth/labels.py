"""Patterns that right names of the bugs match; all bugs were there before any of them was written.

A right name says the same function of the inputs, as keys left out are also another mask.
"""

LOST = "(keys?|page|split|end) left out|another (mask|window)|sees keys|weights of keys by"
OWN_LOST = f"{LOST}|mask is strict|own key"
SEEN = "another (mask|window)|keys that the mask hides|sees (keys|one)"
MASK = "another (mask|window)|keys that the mask hides|sees keys|keys? left out|end left out"
ALIBI = "ALiBi (slopes|by another|that was)|bias (by position|that falls)"
ROW = "denominator of (a|each) row|output by a factor for each"
SUM = f"{ROW}|denominator with keys|in l alone"
READ = "(keys|K and V) read (at|from|again|twice|in another order)|wrong page"
REQUEST = f"K and V of another request|{READ}"
K_READ = r"\bK read (at|from|in another order)|K of the key"
V_READ = "(?<!and )V read (at|from|in another order)|V of the key"
ZERO_V = "(?<!and )V with (wrong|its|a con)|V less (?!its mean)|offset of V|added to V|^with a con"
OWN = "K with an offset for some|weights by a factor of each row|scores, for each"
TURNED_K = "RoPE of (K|Q or K)|K turned"
TWICE = "keys? counted|weights of keys by"
SPLITS = f"splits merged with wrong|{OWN}"
K_FACTOR = r"(?<!Q or )(?<!channels of )\bK by a factor|\bK with (a scale|scales)"
K_SCALE = f"{K_FACTOR}|(?<!with a )wrong scale|K in .*wrong scale|scores times|{OWN}"
ROW_OUT = "another row's output(?! is added|: a sum)"
ROWS = f"{ROW_OUT}|out in another layout"
ADDED = "output (of .*)?is added|o begins with|another row's output: a sum|output of (head|sample)"
UNWRITTEN = "never written|uninitialised|overwritten"

PATTERNS: dict[str, str] = {
    "the diagonal tile whole": f"{SEEN}|causal mask left out",
    "own key hidden": OWN_LOST,
    "diagonal by the padded length": f"{SEEN}|causal mask left out",
    "places of packed rows modulo the queries": MASK,
    "mask among drafts transposed": MASK,
    "bits of the mask from the other end": MASK,
    "sharded keys masked by their places in the shards": f"{MASK}|{READ}",
    "ring masks earlier chunks like its own": LOST,
    "newest key not yet in the length": OWN_LOST,
    "window ends where the tile's last row has it": LOST,
    "window on both sides added up": f"{MASK}|window left out",
    "window of one key more": SEEN,
    "window counted from the chunk's rows": f"{MASK}|window left out",
    "window's first tile skipped": LOST,
    "cap by a quotient": "soft cap (by|of another)|capped by|of a soft cap|weights are another",
    "slopes of the next power of two": ALIBI,
    "slopes by places in the chunk": ALIBI,
    "sink in each of four splits": f"sinks? (once|of logit|in the denominator)|{ROW}",
    "sink by the first split's maximum": f"sinks? (not rescaled|of logit|in the denom)|{ROW}",
    "table of the request before": REQUEST,
    "rows of the table one page short": READ,
    "places in the pool modulo 256": REQUEST,
    "V's requests start at padded places": V_READ,
    "table of pages of 16 read by pages of 32": READ,
    "V's pages ahead in each second half tile": V_READ,
    "first pages of the first request": REQUEST,
    "a page of zeros in the table": "(?<!value of a )key read as 0|(keys|K and V) read as 0",
    "a page of a finished request": REQUEST,
    "oldest slots of the ring overwritten": READ,
    "new tokens appended one slot early": f"new keys are appended|{READ}",
    "later half from the other beam": REQUEST,
    "a page twice in the table": READ,
    "K not yet written, V written": rf"\bK read as 0|{OWN}",
    "groups begin in the middle": "K and V of another head",
    "K's heads by modulo, V's by groups": "K of another head",
    "output heads as groups by KV heads": ROWS,
    "V's heads all the first": "(?<!and )V of another head",
    "queries of the first request": "Q of another (row|request)",
    "cached keys turned again": f"{TURNED_K}|RoPE applied once more",
    "places of keys start again each 64": TURNED_K,
    "values turned like keys": "RoPE of V|(?<!and )V turned",
    "sine of the keys with the other sign": TURNED_K,
    "keys turned with another base": f"{TURNED_K}|RoPE of (another base|other frequencies)",
    "last 16 channels of K from the next key": f"channels of K read|{K_READ}",
    "two registers of Q exchanged": "Q of another row|channels of Q read|Q read (with|from|in)",
    "K's pointer for V": "V is K|K read for V",
    "a scale of its own for half the channels": "channels of (Q or )?[QK] by|[QK] with scales",
    "V's stage read too early": V_READ,
    "last tile overwritten by a prefetch": READ,
    "l rescaled twice at a new maximum": rf"(?<!o and )\bl rescaled|{SUM}",
    "o rescaled by the next row's factor": r"\bo (not )?rescaled|tiles rescaled",
    "a vote of one row on the rescale of 8": r"\bo (not )?rescaled|tiles rescaled",
    "old keys behind the end of the last tile": f"{TWICE}|keys past the end",
    "sums of two warps with maxima of their own": SUM,
    "a step left out of the maximum's butterfly": f"lanes merged by l|weights of keys by|{OWN}",
    "a step left out of the sum's butterfly": f"keys missing in the denom|NaN or inf|{SUM}",
    "last tile missing in l": f"keys missing in the denominator|{SUM}",
    "o begins with that of the head before": ADDED,
    "weights of the tile before in every fourth product": "weights are those of another tile",
    "multicast of odd tiles from the first block": "K and V of another head",
    "last columns of a tile's scores from the next": f"{K_READ}|weights are those of another tile",
    "tiles skipped too soon": "small weights dropped|keys left out|weights of keys",
    "scores added to those of the tile before": f"K is a sum of several keys|{OWN}",
    "log2 taken for a natural logarithm in the merge": f"mixed log base|{SPLITS}",
    "empty splits with a log-sum-exp of 0": f"(padding|sink) in the denom|keys past the end|{SUM}",
    "last log-sum-exp without its newest keys": SPLITS,
    "log-sum-exps read with other strides": f"splits weighted by another|NaN or inf|{SPLITS}",
    "partials but the first of the next head": f"{ROW_OUT}|weights are those of another row",
    "a chunk of the ring twice": READ,
    "shared prefix merged twice": f"first split counted|{TWICE}",
    "splits that overlap by 8 keys": TWICE,
    "rest of the keys in no split": LOST,
    "reduction before the last split": "(?<!and )V read as 0|split lost|output alone",
    "larger log-sum-exp for the sum of two": SPLITS,
    "weights of prefix and suffix exchanged": f"splits weighted by another|{SPLITS}",
    "log-sum-exp overwritten before the last channels": SPLITS,
    "log-sum-exps in 8 bits": f"splits merged with log-sum-exps in|{SPLITS}",
    "scale of V forgotten for cached tokens": "(?<!and )V (by a|with (a )?scale)|output alone",
    "scale of K on new tokens too": K_SCALE,
    "scales of K by modulo of the heads": K_SCALE,
    "scales of V's channels one off": "(?<!and )V (by|or the o|with scales)|r for each channel",
    "halves of V's pairs exchanged": "channels (mixed up|of V)|(?<!and )V read with .*channels",
    "P cut off to 7 bits": r"\bP (in|truncated)|weights are another function",
    "exp2 with a linear mantissa": "exp2 by a polynomial|weights are (no|another function)",
    "scale twice in the last quarter": f"scale applied twice|{K_SCALE}",
    "l added key by key in bf16": f"l accumulated in|{ROW}",
    "zero point of V not taken off": ZERO_V,
    "zero points of K of the page before": f"K with (wrong zero|its zero|means)|bias of K|{OWN}",
    "block scales of K one block on": K_FACTOR,
    "V clipped by a scale too small": "(?<!and )V (clipped|through|in .*wrong scale)",
    "scales of K's tokens one token late": K_SCALE,
    "Q in four bits": r"\bQ in |queries in few bits|q rounded",
    "second half of the channels in the row beside": f"{ROW_OUT}|channels wrong",
    "last packed row left out": UNWRITTEN,
    "output added to that of the request before": ADDED,
    "heads and queries of the output exchanged": ROWS,
    "half of the channels divided by another row's sum": ROW,
    "odd heads divided twice": f"{ROW}|divided (before|twice)",
    "stored one element late": "channels (mixed up|wrong)|out .*(elements|stored)",
    "channels of odd rows turned by two": "channels (mixed up|wrong)",
    "requests in the order of their lengths": ROWS,
    "first head of later requests overwritten": UNWRITTEN,
    "NaN of a page behind the end": "NaN or inf",
    "last head of the former call": UNWRITTEN,
    "quarters of the rows in the order of ranks": f"{ROWS}|Q of another row",
    "first rows not divided": f"not normalised|denominator left out|{ROW}",
}
