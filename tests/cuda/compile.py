"""Compiles every CUDA kernel with NVRTC for the cards that calla runs on, without a card.

    python tests/cuda/compile.py FOLDER [--jobs N]

FOLDER is what `cargo run -p calla-engine --example cuda_units -- FOLDER` writes. Fails when a unit
does not compile, at any warning, and when a kernel has too few registers for what it keeps. Prints
what each kernel of the full-size model takes; the others are compiled for one card.
"""

import argparse
import concurrent.futures
import ctypes
import pathlib
import re
import sys

import nvidia

# A100; RTX 40; H100 and H200; RTX 50.
ARCHITECTURES = ["sm_80", "sm_89", "sm_90a", "sm_120"]

# Those of Compiler::compile in crates/engine/src/backend/cuda/device/driver/compiler.rs.
OPTIONS = ["--std=c++17", "--fmad=true", "--extra-device-vectorization", "--diag-suppress=177"]

# Bytes of local memory that a thread may use: a few registers outside of the inner loops.
FRAME_BYTES_MAX = 64

FULL_SIZE = "qwen3.6-35b-a3b"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    files = sorted(arguments.folder.glob("*/*.cu"))
    if not files:
        print(f"{arguments.folder} holds no */*.cu", file=sys.stderr)
        return 1
    jobs = [
        (file, architecture)
        for file in files
        for architecture in (ARCHITECTURES if is_full_size(file) else ARCHITECTURES[:1])
    ]
    problems = []
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        for (file, architecture), (status, log) in zip(jobs, pool.map(compile_unit, jobs)):
            unit = f"{file.parent.name}/{file.stem} for {architecture}"
            kernels = resources(log)
            if status != 0 or re.search(r"\bwarning\b", log, re.IGNORECASE):
                problems.append(f"{unit}:\n{log}")
            elif not kernels:
                problems.append(f"{unit}: the log names no kernel:\n{log}")
            for name, used in kernels.items():
                if used["frame"] > FRAME_BYTES_MAX:
                    problems.append(f"{unit}: {name} keeps {used['frame']} bytes in local memory")
                if is_full_size(file):
                    print(f"{unit}: {name}", *(f"{key} {value}" for key, value in used.items()))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(jobs)} units compiled, {len(problems)} problems")
    return 1 if problems else 0


def is_full_size(file: pathlib.Path) -> bool:
    return file.parent.name.startswith(FULL_SIZE)


def resources(log: str) -> dict[str, dict[str, int]]:
    """What ptxas says of each kernel: registers of a thread, and bytes."""
    kernels: dict[str, dict[str, int]] = {}
    used: dict[str, int] = {}
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            used = kernels[found[1]] = {"registers": 0, "shared": 0, "frame": 0, "spilled": 0}
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) .* stores, (\d+) .* loads", line):
            used["frame"], stores, loads = map(int, found.groups())
            used["spilled"] = stores + loads
        elif found := re.search(r"Used (\d+) registers(?:.* (\d+) bytes smem)?", line):
            used["registers"], used["shared"] = int(found[1]), int(found[2] or 0)
    return kernels


def compile_unit(job: tuple[pathlib.Path, str]) -> tuple[int, str]:
    """Status, and what compiler and assembler say."""
    file, architecture = job
    nvrtc = open_nvrtc()

    def check(status: int) -> None:
        if status != 0:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(status).decode())

    program = ctypes.c_void_p()
    source, name = file.read_bytes(), file.name.encode()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None))
    options = [f"--gpu-architecture={architecture}", *OPTIONS, "--ptxas-options=-v"]
    values = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), values)
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetProgramLog(program, log))
    check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return status, log.value.decode()


def open_nvrtc() -> ctypes.CDLL:
    for folder in nvidia.__path__:
        for path in sorted(pathlib.Path(folder).glob("*/lib/libnvrtc.so.*")):
            for part in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))  # some versions look for it where the system's libraries are
            nvrtc = ctypes.CDLL(str(path))
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            return nvrtc
    raise SystemExit("no NVRTC: pip install nvidia-cuda-nvrtc")


if __name__ == "__main__":
    sys.exit(main())
