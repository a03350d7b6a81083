"""The right names of the bugs of the eighteenth set, as patterns, written after all bugs."""

NOTHING = r"(?!)"  # no name that is printed says the cause
SOME_LOST = r"keys? left out(?!, as)"
LOST = r"keys? (at the end )?left out(?!, as)"
ENDS = r"mask that ends elsewhere"
HIDDEN = r"keys that the mask hides|^hidden keys take part(?! with score 0)"
SEEN = rf"keys that the mask hides|^hidden keys take part(?! with)|{ENDS}"
WIDE = rf"^another window(?!: keys left out)|{SEEN}|first key is always seen"
EITHER = rf"another mask(,|:)|{SEEN}|{LOST}"
TWICE = r"keys? counted (twice|2)|keys (read|counted) twice|^(weights of )?keys by a factor"
ELSEWHERE = r"read (again|twice|from|in another|at an offset|by|some|with (an address|pages|a row))"
READ = rf"^(keys|K and V) {ELSEWHERE}|^some keys read again|^wrong page"
REQUEST = rf"^(keys|K and V) of another request|across requests|request begins|{READ}"
K_READ = rf"^K {ELSEWHERE}|^K of the key"
V_READ = rf"^V {ELSEWHERE}|^V of the key"
OTHER_WEIGHTS = r"weights are those of other keys"
KV_HEADS = r"^K and V of another head|reads KV head|^KV heads? |GQA heads"
K_CHANNELS = r"^K read with (its channels|another swizzle|two registers)|^channels of K"
K_OFF = r"^K read (some elements off|at an offset|with an address)"
QK_CHANNELS = rf"{K_CHANNELS}|^channels of Q or K mixed up"
V_CHANNELS = r"^V read with (its channels|another swizzle|two registers)"
V_SQUARES = rf"^V .*(transposed|squares)|{V_CHANNELS}|^V in another layout|^channels of V"
K_SQUARES = rf"^K .*(transposed|squares)|{K_CHANNELS}|^K in another layout"
K_SCALES = r"^K with scales|^K .*wrong scale|^(channels of )?(Q or K|K) by a factor"
V_SCALES = (
    r"^V with scales|^V (or the output )?by a factor for each (key|block|page|token)"
    r"|^V .*wrong scale"
)
V_SCALE = (
    r"(V|the output) by a factor(?! for each (row|query|channel|key|block|token|page))"
    r"|^V without .*scale|^V with a (wrong )?scale|^V .*wrong scale|^V divided by its largest"
)
ROW = r"^another row's output(?! (is added|in some)|, in some|: a sum)|^the output of (head|query)"
SINKS = r"^sinks? of (another head|other (heads|numbers))"
SLOPES = r"^ALiBi slopes"
DISTANCE = r"^ALiBi by another distance|^ALiBi .*distance"
BY_ROW = r"the output by a factor for each (row|query)|^the row by a factor"
L_ROW = rf"^denominator of (each row|another)|{BY_ROW}"
L = rf"keys missing in the denominator|^denominator with keys|{L_ROW}"
MERGED = r"splits merged with wrong weights|keys by a factor for each (block|tile|split)"
ANOTHER_LSE = rf"another split's lse|{MERGED}"
PAST = r"keys past the end|keys behind the last|next request's first"
PADDING = (
    r"^padding|^keys of score 0|^keys of zeros|keys past the end|keys behind the last"
    r"|^denominator of each row|sink in the denominator"
)
TURNED_K = r"RoPE of K by|^K turned(?!.*Hadamard)|RoPE applied once more, to (K|keys|some|new)"
NORMED_Q = (
    r"^Q (less its mean, )?divided by its|^(Q|Q or K) by a factor for each (query|row)"
    r"|wrong scale, another for each (query|row)"
)

_OF = {
    SINKS: "sinks by the KV head's number; the second rank takes the first one's sinks",
    r"^sinks? (once per|counted|twice|in each split|of other numbers|with a constant|.*\bplus)": (
        "the sink in the kernel and in the join"
    ),
    r"^sinks? (not rescaled|of other numbers|.*each row)|^denominator of each row": (
        "l starts at one under the first tile's maximum"
    ),
    r"^sinks? (with the wrong sign|of other numbers|.*times -1)": "sinks with their sign turned",
    r"^soft cap of another|^soft cap .*(log2|base 2)": "the cap after the factor log2 e",
    r"^soft cap (by another function|of another)|sigmoid, 2": "a cap by a sigmoid",
    r"clipped at the cap|^scores clamped, both ways|^soft cap by another": "a cap that cuts",
    r"^soft cap after|^ALiBi .*\bcap": "the cap over ALiBi",
    SLOPES: "slopes by the KV head's number; slopes of twice as many heads",
    DISTANCE: "distances anew after 48 keys",
    rf"{DISTANCE}|^ALiBi .*log|bias by the logarithm": "ALiBi by the log of the distance",
    WIDE: (
        "a window that begins with its tile; a window of the tile's first row; "
        "four first keys stay in the window"
    ),
    rf"^window left out|{WIDE}": "odd heads without the window",
    rf"^another window(?!: keys that)|{SOME_LOST}": "a window halved for two sides",
    rf"causal mask left out|{SEEN}": "diagonal tiles of 16 without a mask",
    rf"{LOST}|{ENDS}": "the diagonal tile of 8 left out; rows masked as the first of their eight",
    rf"causal mask aligned(?! to the first)|{LOST}|{ENDS}": "places from queries padded to 16",
    rf"the query's own chunk|{SOME_LOST}": "drafted tokens see only the prompt and themselves",
    SOME_LOST: "a sparse pattern of every eighth key",
    rf"mask.*transposed|{EITHER}": "the chunk's mask transposed; mask rows at a padded stride",
    rf"^packed rows|(mask|sees).*(packed|row \(h m)|{EITHER}": (
        "packed rows masked as token by token"
    ),
    SEEN: "an image's tokens see each other",
    HIDDEN: "hidden keys lowered by one",
    rf"{HIDDEN}|^padding in the denominator|^denominator (of each row|with keys)": (
        "hidden keys in the denominator alone"
    ),
    rf"{V_READ}|{OTHER_WEIGHTS}": "V's pages swapped in pairs; V by another layer's table",
    rf"two registers|{OTHER_WEIGHTS}|{V_READ}": "four V in the order 0 2 1 3",
    READ: "half a page read for a whole one",
    KV_HEADS: (
        "query heads in groups that are one too large; "
        "the second rank reads the first one's KV heads"
    ),
    r"^V of another head|^V .*KV head": "V's heads by the remainder",
    REQUEST: (
        "the first request's prefix for all; an entry of -1 reads the pool's last page; "
        "requests begin at padded lengths"
    ),
    rf"^K of another request|{K_READ}": "beams reordered in K alone",
    r"^K read as 0|^keys of score 0(?! up)|scores of these keys are 0|^new keys hold 0": (
        "the chunk's K is not yet written"
    ),
    rf"new keys(?!.*(reverse|hold))|^K and V (in another layout|of another head)|{READ}": (
        "new keys stored by token and read by head"
    ),
    V_SQUARES: "8 by 8 blocks of V not transposed",
    K_SQUARES: "8 by 8 blocks of K not transposed",
    rf"{V_CHANNELS}|^V .*swizzle": "V with a swizzle of four keys for eight",
    rf"{K_READ}|^K .*stride": "K at a stride of eight channels more",
    rf"{V_READ}|^V .*(stride|transposed)|^channels of V read": "V's columns at a padded length",
    (
        r"^(keys|K and V|K|V) .*(other tensor|by turns|pages in another layout)"
        r"|^K and V exchanged|^K read for V|^V read for K|^K is V|^V is K"
    ): "a page of keys and values read in turns",
    rf"{QK_CHANNELS}|^K of another head, in some|{K_OFF}": "K begins eight channels late",
    QK_CHANNELS: "the second 32 channels of K are the first; neighbouring channels of K swapped",
    r"^V is K|^K read for V|^V .*other tensor": "V taken from K's channels",
    r"^channels of Q or K (counted twice|by a factor)|^(Q|K|Q or K) by a factor for each channel": (
        "the last 16 channels enter scores twice"
    ),
    r"^K of another head|^channels of K": "the last 16 channels of K of the first head",
    r"^Q of another (row|head)|^channels of Q (of|from|read)": (
        "Q's upper channels of the next head"
    ),
    K_READ: "K's third buffer is never filled again",
    V_READ: "odd tiles take the next tile's V; the last four V of 16 are those before",
    TWICE: ("splits that overlap by eight keys; the first 32 keys in the prologue and the loop"),
    rf"split left out|page left out|{SOME_LOST}": "a ring of four that stops a step early",
    MERGED: (
        "a ring that turns the sign of its update; a join that goes on with the larger log-sum-exp"
    ),
    ANOTHER_LSE: "a join that keeps the first log-sum-exp",
    rf"partial outputs of another split|{ANOTHER_LSE}": "the weights of two halves swapped",
    rf"log-sum-exps in (?!base)|log-sum-exps (cut|rounded)|{MERGED}": (
        "log-sum-exps cut to integers"
    ),
    rf"splits? left out|splits? .*counted|^partial outputs of another|{SOME_LOST}|{TWICE}|{READ}": (
        "a workspace of three slots"
    ),
    rf"^mixed log base(?!.*exp2 of natural)|converted to base 2 twice|lse is in base|{MERGED}": (
        "log-sum-exps in base 2 taken by exp"
    ),
    rf"^mixed log base|lse is in base|{MERGED}": "the first split's log-sum-exp in base 2",
    rf"not (yet )?divided|^denominator left out|^denominator of each row|{MERGED}": (
        "parts not divided by their sums"
    ),
    rf"lse of another (row|head)|{ANOTHER_LSE}": "log-sum-exps by split read by head",
    r"^o (not rescaled|rescaled wrongly)|^tiles rescaled wrongly": (
        "a rescale only if all rows of a group move"
    ),
    r"inverse factor|^o and l rescaled(?! by (a stale|exp))|^(tiles )?rescaled wrongly": (
        "the rescale turned over"
    ),
    L: "a denominator from half of the lanes; a denominator without the last tile",
    rf"^l (accumulated|is the sum)|, in l alone|{L_ROW}": (
        "a denominator of weights cut to two bits"
    ),
    L_ROW: "the next head's denominator",
    r"^exponents clamped(?!.*at least)|^scores clamped, (in each row to at most|from above)": (
        "weights over the first tile's maximum clipped"
    ),
    r"^small weights dropped|^keys left out, (as|other)": (
        "tiles a little below the maximum skipped"
    ),
    rf"weights are those of another tile|{OTHER_WEIGHTS}|^P .*tile": (
        "odd tiles take the weights before"
    ),
    PADDING: "zeros behind the last key up to 64",
    PAST: "the last tile runs into the next request",
    r"^V in (int[3-5]|e2m1|[3-5] bits|few bits|fixed|(\d+ )?steps)(?!.*wraps)": (
        "V in int4 by token"
    ),
    K_SCALES: "K's scales of channels one channel late",
    V_SCALES: "V's scales of tokens one token late; the first block's scale for all of V",
    r"^V clipped|^V .*(clamp|saturat)": "V saturates at half of each block's largest",
    V_SCALE: "V's scale of the tensor left out",
    (
        r"^K in e4m3.*scale|^(Q or )?K by a factor|^wrong scale(?!, another)|^scores times 2"
        r"|^K .*whose bits"
    ): ("K in e4m3fnuz read as e4m3fn"),
    r"^K .*(wraps|overflow)": "K in int8 that wraps around",
    r"^K .*sign alone|^K in (1 bit|few bits|int[12]\b)|^K through": "K by its signs",
    r"^V in (e5m2|[1-3] bits|few bits)|^V .*(cut|toward 0|truncated|bits after)": (
        "the low bytes of V lost"
    ),
    r"^K (less|is shifted|with (an offset|a constant|means?|its mean))|factor of each row's own": (
        "K less the mean of each 64 keys"
    ),
    (
        r"^V (less|(is|was) shifted|with (an offset|a constant|means?|its mean))"
        r"|^(an offset of|a constant is added to) V"
    ): "V's means of 48 keys not added back",
    r"^(V|out|the output).*Hadamard|^V turned$": "V turned by a Hadamard matrix for good",
    r"^P (in|rounded to) (steps|int8|8 bits|few bits|fixed)|^P .*steps": (
        "the weights in steps of 1/127"
    ),
    r"^scores (rounded|in few bits|.*(e5m2|bits after))": "the scores in e5m2",
    NORMED_Q: "queries normalised in the kernel again",
    rf"{ROW}|^packed rows|^rows of packed|^out in another layout": (
        "packed rows stored head by head"
    ),
    r"another row's output, in some channels|those of the row beside": (
        "upper channels stored by the row before"
    ),
    r"^out (was rounded|in|was cut).*(e4m3|\b[34] bits)": "the output through e4m3",
    r"^out(put)? clipped": "the output saturates at a third of its largest",
    r"^another row's output(: a (sum|mean)| is added)|^mean of heads|^(out|the output) .*mean of": (
        "the mean of a group's outputs"
    ),
    NOTHING: "the output gated by Q",
    rf"^out divided by its (root|length)|{BY_ROW}": "the output normed to a mean square of 1",
    (
        r"^(another row|out|the output|rows|channels (?!of)).*(transposed|squares)"
        r"|those of the row beside|^out in another layout"
    ): ("8 by 8 blocks of the output transposed"),
    ROW: "pairs of rows stored from the last",
    rf"^channels (mixed up(?!,| with)|wrong)|{V_CHANNELS}": (
        "channels stored in the order of registers"
    ),
    r"^denominator (left out|of each row in)|^channels wrong": "upper channels not divided",
    rf"divided twice|^denominator .*(twice|squared)|{L_ROW}": "divided twice by the denominator",
    rf"{TURNED_K}|RoPE of Q or K alone": "K turned by its place in a page",
    rf"RoPE of Q by|RoPE .*sign|^Q and K turned|{TURNED_K}": (
        "Q and K turned in opposite directions"
    ),
    (
        r"RoPE (of Q by|some places off|of Q or K alone|applied once more, to Q)"
        r"|^Q turned(?!.*Hadamard)"
    ): "Q turned by its row for its place",
    rf"turned twice|{TURNED_K}": "new keys turned twice",
    rf"RoPE .*(rounded|bf16)|RoPE of other frequencies|{TURNED_K}": "angles of K in bf16",
    TURNED_K: "half the angle after 32 keys",
    r"^bias by (position|key)|^(weights of )?keys by a factor": ("an old bias of keys left on"),
}
PATTERNS = {bug: pattern for pattern, bugs in _OF.items() for bug in bugs.split("; ")}
"""Bug: a pattern that its right names match."""
