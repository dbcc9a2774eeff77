"""Hostile bytes through the wire format, each judged by an independent reader.

Run from the root of the repository: ``python -m benchmarks.fuzz_wire --count 1000000``. With
``--atheris SECONDS`` the payloads are guided by coverage instead (needs atheris). ``--json FILE``
adds the result to a file. The exit code is 1 if a payload raised an exception or was misjudged.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.hostile_messages import DTYPES, MUTATIONS, D, hostile_payloads, split, valid
from equipoise.messages import HEADER_LIMIT, Header, read_header

LIKES = [
    torch.zeros(D, dtype=dtype)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
]


# Judgement


def expected_vector(payload: bytes, like: Tensor) -> Tensor | None:
    """The vector of a well-formed message; None for others. Shares no code with the library."""
    try:
        tensors = safetensors.torch.load(payload)
        text = split(payload)[0].decode()
        header = json.loads(text)
        metadata = header["__metadata__"]
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError):
        return None  # the bindings for PyTorch raise KeyError for types that it does not have
    canonical = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    canonical += " " * (-len(canonical.encode()) % 8)
    # Equal only without duplicate keys, white space and needless escapes.
    if canonical != text or list(tensors) != ["model"] or tensors["model"].shape != (len(like),):
        return None
    names = ["format", "version", "round", "sender", "exchange"]
    values = tensors["model"]
    if values.dtype == torch.int8:
        names.append("scale")
    if values.dtype not in DTYPES or list(metadata) != names or list(header)[1:] != ["model"]:
        return None
    if list(header["model"]) != ["dtype", "shape", "data_offsets"]:
        return None
    counts = [metadata[name] for name in ("round", "exchange")]
    if not all(x.isascii() and x.isdigit() and x == str(int(x)) for x in counts):
        return None
    is_valid = (metadata["format"], metadata["version"]) == ("equipoise", "1")
    is_valid &= all(int(x) <= 2**53 for x in counts)
    is_valid &= metadata["sender"].isprintable()
    is_valid &= 0 < len(metadata["sender"].encode()) < 256
    if not is_valid:
        return None
    if values.dtype != torch.int8:
        return values.to(like.dtype)
    try:
        scale = float.fromhex(metadata["scale"])
    except (ValueError, OverflowError):
        return None
    if scale.hex() != metadata["scale"] or not 2.0**-1022 <= scale < 2.0**1017.01:
        return None
    return (values.double() * scale).to(like.dtype)


def examine(payload: bytes, like: Tensor) -> str:
    """``rejected``, ``accepted`` or what is wrong; exceptions of the library pass through."""
    found = eq.unpack(payload, like=like)
    header = read_header(payload, d=len(like))
    if header is None and len(payload) >= HEADER_LIMIT:
        return "undecided header"
    if isinstance(found, Tensor) and not isinstance(header, Header):
        return "inconsistent"
    for reason in (found, header):
        is_reason = isinstance(reason, str)
        if is_reason and not re.fullmatch(r"(malformed|wrong size): [a-z0-9 ,]{5,60}", reason):
            return "unexpected reason"
    expected = expected_vector(payload, like)
    if isinstance(found, str):
        return "rejected" if expected is None else "rejected but well-formed"
    if expected is None:
        return "accepted but not well-formed"
    is_equal = torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    return "accepted" if is_equal else "accepted with other values"


def fuzz(count: int, seed: int) -> Counter[str]:
    """How many payloads had each outcome."""
    outcomes: Counter[str] = Counter()
    rng = random.Random(seed)
    for number, payload in enumerate(hostile_payloads(seed)):
        if number == count:
            return outcomes
        if number % 100_000 == 99_999:
            print(f"{number + 1:,} payloads: {dict(outcomes)}", file=sys.stderr, flush=True)
        try:
            outcome = examine(payload, rng.choice(LIKES))
        except Exception as error:
            outcome = f"crashed: {type(error).__name__}"
        if outcome not in ("accepted", "rejected") and not outcomes[outcome]:
            print(f"{outcome}: {payload!r}", file=sys.stderr)
        outcomes[outcome] += 1
    raise AssertionError("payloads are endless")


# Coverage-guided


def run_atheris(seconds: int, seed: int) -> Counter[str]:
    """Run libFuzzer in a process of its own, which it ends itself."""
    with tempfile.TemporaryDirectory() as corpus:
        rng = random.Random(seed)
        for number in range(200):
            Path(corpus, str(number)).write_bytes(valid(rng))
        command = [sys.executable, "-m", "benchmarks.fuzz_wire", "--libfuzzer", corpus]
        options = [f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=2048"]
        command += [*options, "-print_final_stats=1", f"-artifact_prefix={corpus}/"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if done.returncode or found is None:
        print(done.stderr[-5000:], file=sys.stderr)
        return Counter({"crashed: see the output": 1})
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)[-1]
    print("edges {}, features {}, corpus {}".format(*coverage))
    return Counter({"accepted or rejected": int(found[1])})


def libfuzzer(arguments: list[str]) -> None:
    """The process of `run_atheris`."""
    import atheris

    for name in ("read_header", "_parse_header", "_check_sender"):
        module = sys.modules["equipoise.messages.wire"]
        setattr(module, name, atheris.instrument_func(getattr(module, name)))

    def test_one(payload: bytes) -> None:
        for like in LIKES[:2]:
            outcome = examine(payload, like)
            if outcome not in ("accepted", "rejected"):
                raise AssertionError(outcome)

    def mutate(payload: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(payload, max_size))
        return rng.choice(MUTATIONS)(payload, rng)[:max_size]

    atheris.Setup([sys.argv[0], *arguments], test_one, custom_mutator=mutate)
    atheris.Fuzz()


# Command


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--libfuzzer"]:
        libfuzzer(given[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100_000, help="number of payloads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", type=int, metavar="SECONDS", help="guided by coverage")
    parser.add_argument("--json", type=Path, help="add the result to this file")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    start = time.perf_counter()
    if options.atheris:
        outcomes = run_atheris(options.atheris, options.seed)
    else:
        outcomes = fuzz(options.count, options.seed)
    seconds = time.perf_counter() - start
    total = sum(outcomes.values())
    result = {
        "command": f"python -m benchmarks.fuzz_wire {' '.join(_without_json(given))}".rstrip(),
        "payloads": total,
        "payloads_per_second": round(total / seconds),
        "crashes": sum(n for outcome, n in outcomes.items() if outcome.startswith("crashed")),
        "accepted_but_not_well_formed": outcomes["accepted but not well-formed"],
        "outcomes": dict(sorted(outcomes.items())),
    }
    print(json.dumps(result, indent=2))
    if options.json:
        runs = json.loads(options.json.read_text()) if options.json.exists() else []
        runs = [run for run in runs if run["command"] != result["command"]]
        options.json.write_text(json.dumps([*runs, result], indent=2) + "\n")
    return int(not (+outcomes).keys() <= {"accepted", "rejected", "accepted or rejected"})


def _without_json(arguments: list[str]) -> list[str]:
    if "--json" not in arguments:
        return arguments
    at = arguments.index("--json")
    return arguments[:at] + arguments[at + 2 :]


if __name__ == "__main__":
    raise SystemExit(main())
