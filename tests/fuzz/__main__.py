"""Fuzz for as long as asked: python3 -m tests.fuzz --seconds 3600.

Each call is named by its verb, by the seed of what is compiled, and by the number of the problem on
it; a call that fails is shown with a command to repeat it.
"""

import argparse
import sys
import time
import traceback
from collections import Counter

import torch

from tests.fuzz.problems import VERBS, Seeded

REFUSED = ", allowed"  # what every refusal says


def main() -> int:
    """Call the verbs in turns; return 1 if a call failed."""
    options = arguments()
    verbs, counts = options.verbs or list(VERBS), Counter()
    print(f"fuzz on {options.device}, from seed {options.seed}", flush=True)
    end_s, seed = time.monotonic() + options.seconds, options.seed
    last = options.seed + options.seeds if options.seeds else None
    while seed == options.seed or (
        (time.monotonic() < end_s if last is None else seed < last) and not options.once
    ):
        for verb in verbs:
            problems = [options.problem] if options.once else range(options.problems)
            how = {"device": options.device, "wide": not options.narrow}
            counts += Counter(judged(verb, Seeded(seed, n, **how)) for n in problems)
        seed += 1
    told = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    print(f"{sum(counts.values())} calls, seeds {options.seed} to {seed - 1}: {told}")
    return 1 if counts["wrong"] else 0


def judged(verb: str, choose: Seeded) -> str:
    """Call a verb as a seed says; return "right", "refused" or "wrong"."""
    try:
        VERBS[verb](choose)
    except ValueError as refusal:
        if REFUSED in str(refusal):
            return "refused"
        problem = refusal
    except Exception as error:
        problem = error
    else:
        return "right"
    lines = "".join(traceback.format_exception(problem)).splitlines()
    print("\n".join(lines[-12:]))
    narrow = "" if choose.wide else " --narrow"
    where = f"--seed {choose.seed} --problem {choose.problem} --device {choose.device}{narrow}"
    print(f"wrong: python3 -m tests.fuzz --once --verbs {verb} {where}", flush=True)
    return "wrong"


def arguments() -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--verbs", nargs="*", choices=list(VERBS))
    parser.add_argument("--seeds", type=int, help="seeds of each verb, in place of --seconds")
    parser.add_argument("--problems", type=int, default=12, help="calls of each verb and seed")
    parser.add_argument("--problem", type=int, default=0, help="the only one, with --once")
    parser.add_argument("--narrow", action="store_true", help="one policy and head_dim, no checks")
    parser.add_argument("--once", action="store_true", help="one call of each verb")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
