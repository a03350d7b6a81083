"""The command `labkernels`: each module in this folder that has HELP is a command.

A command has HELP, one line; DESCRIPTION, with examples; add_options(parser); and run(options),
which returns the exit code. It may have WAITING, words for whoever waits for long. It imports torch
only when it runs, not for its help.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType

from labkernels.cli.options import DONE, FAILED, INTERRUPTED, USAGE, told_to_wait

_TOP = """Attention kernels whose registers, shared memory, time and rounding errors are predicted
before they are measured.

examples:
  labkernels doctor                                     what can this machine run, and why not more
  labkernels budget decode_mma --head-dim 128           where its bytes and registers go
  labkernels run decode_fma --batch 4 --kv-len 2048     run it here and compare with float64
  labkernels tune prefill_mma --no-gpu                  which tiles are worth a run
  labkernels probe my_kernel.py:attention               what a kernel computes, and is it right
  labkernels certify my_kernel.py:attention --causal    does the batch change a request's bits
  labkernels explain flashinfer:fa2 1x8192 57x8192      how a library cuts two batches
  labkernels audit dump.npz                             is this output rounding, or a bug
  labkernels compare prefill.pt decode.pt               do two outputs differ by more than rounding
  labkernels tolerance --decode 57x8192                 what a test may honestly allow
  labkernels record decode_tensor_cores                 measure on a GPU, write data/
  labkernels ladder prefill                             kernels rung by rung, one idea each
  labkernels scoreboard                                 targets beside what was measured
  labkernels cache                                      compiled kernels: show and clear
  labkernels data export --to rows                      the recorded rows, for a spreadsheet

exit codes: 0 done; 1 a check failed (a kernel outside its bound, a target not met with --strict,
a machine that runs no kernel); 2 the request itself was wrong, as one line says.
"""


def commands() -> dict[str, ModuleType]:
    """Return every command's module by its name."""
    found = sorted(each.name for each in pkgutil.walk_packages(__path__, f"{__name__}."))
    modules = {name.rpartition(".")[2]: importlib.import_module(name) for name in found}
    return {name: module for name, module in modules.items() if hasattr(module, "HELP")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a wrong request is one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        words = options.waiting.format_map(vars(options))
        # Whoever calls main with arguments, as a notebook does, knows which command is at work.
        words = words or (options.at_work if arguments is None else "")
        with told_to_wait(words) if words else nullcontext():
            code = options.command(options)
        sys.stdout.flush()
        return code
    except (ValueError, FileNotFoundError) as error:
        return _complain(error, USAGE)
    except BrokenPipeError:
        # The reader of a pipe has closed it (labkernels budget ... | head): drop the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (RuntimeError, OSError) as error:
        # A compiler, a kernel or a disk failed. The first line of a log states the error.
        return _complain(str(error).partition("\n")[0], FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted; what was measured before is kept", INTERRUPTED)


def _complain(error: object, code: int) -> int:
    print(f"labkernels: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="labkernels", description=_TOP, formatter_class=raw)
    listed = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module in commands().items():
        sub = listed.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=raw
        )
        module.add_options(sub)
        waiting, at_work = getattr(module, "WAITING", ""), f"{name} is at work"
        sub.set_defaults(command=module.run, waiting=waiting, at_work=at_work)
    return parser
