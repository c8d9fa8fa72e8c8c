"""What the comparisons with torch share: where, when and how figures were taken."""
import datetime
import os
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def spread(values):
    """The median, and the least and the most, as text."""
    return (f"{statistics.median(values):.2f} "
            f"({min(values):.2f} to {max(values):.2f})")


def today():
    date = datetime.date.today()
    return f"{date.day} {date:%B %Y}"


def output_of(command):
    done = subprocess.run(command, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.strip() or "unknown"


def machine():
    """The processor's name, its cores, and what vectors it has."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    flags = flags.group(1).split() if flags else []
    vectors = [name for flag, name in [
        ("avx512f", "AVX-512"), ("avx512_bf16", "AVX-512 bf16"),
        ("amx_bf16", "AMX bf16"), ("avx2", "AVX2")] if flag in flags]
    vectors = vectors[:-1] if len(vectors) > 1 else vectors
    return (f"{model.group(1) if model else 'unknown processor'}, "
            f"{len(os.sched_getaffinity(0))} cores, {' and '.join(vectors)}")


def commit():
    git = ["git", "-C", str(ROOT), "-c", "safe.directory=*"]
    changed = output_of(git + ["status", "--porcelain", "--untracked-files=no"])
    return (output_of(git + ["rev-parse", "--short", "HEAD"]) +
            ("" if changed == "unknown" else " and changes"))
