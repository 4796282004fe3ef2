"""huggingface_hub and calla share one cache: each finds, completes and removes what the other
downloaded. And what calla shows and asks on a terminal meanwhile.

Usage: python3 tests/hub/shared_cache.py [PROGRAM]     needs huggingface_hub, pexpect
PROGRAM is target/debug/calla when left out. Both download models/seedling from a hub on this
machine.
"""

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pexpect

ROOT = Path(__file__).resolve().parents[2]
REPO, COMMIT = "someone/seedling", "0123456789abcdef0123456789abcdef01234567"
FILES = {path.name: path.read_bytes() for path in (ROOT / "models/seedling").iterdir()}
WEIGHTS = "model.safetensors"
WAIT_S = 120


def main():
    program = str(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/calla").resolve())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.may_send = threading.Event()
    server.may_send.set()
    server.pause_s = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # huggingface_hub reads its environment when it is imported.
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as cache:
                test(functools.partial(calla, program, cache), Path(cache), server)
            print(f"ok  {name}")


def calla(program, cache, *arguments, terminal=False):
    """Starts the program on this cache."""
    environment = {"HF_HUB_CACHE": cache, "HF_ENDPOINT": os.environ["HF_ENDPOINT"]}
    if terminal:
        return pexpect.spawn(
            program, list(arguments), env=environment, encoding="utf-8", timeout=WAIT_S
        )
    return subprocess.Popen(
        [program, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What a run that must succeed prints."""
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return out


def scan(cache):
    from huggingface_hub import scan_cache_dir

    info = scan_cache_dir(cache)
    assert not info.warnings, info.warnings
    return info


def wait_for(what):
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_huggingface_hub_finds_what_calla_pulled(run, cache, server):
    from huggingface_hub import hf_hub_download, snapshot_download

    path = json.loads(finish(run("pull", REPO, "--all", "--json")))["path"]
    (repo,) = scan(cache).repos
    (revision,) = repo.revisions
    assert (repo.repo_id, repo.repo_type) == (REPO, "model")
    assert (revision.commit_hash, revision.refs) == (COMMIT, {"main"})
    assert {file.file_name for file in revision.files} == set(FILES)
    assert revision.size_on_disk == sum(map(len, FILES.values()))
    local = {"cache_dir": cache, "local_files_only": True}
    assert snapshot_download(REPO, **local) == path
    assert Path(hf_hub_download(REPO, WEIGHTS, **local)).read_bytes() == FILES[WEIGHTS]
    # With the hub at hand it has nothing to download either.
    server.may_send.clear()
    assert snapshot_download(REPO, cache_dir=cache) == path
    server.may_send.set()
    # What it removes is gone for calla.
    scan(cache).delete_revisions(COMMIT).execute()
    assert json.loads(finish(run("list", "--json"))) == []


def test_calla_finds_what_huggingface_hub_downloaded(run, cache, server):
    from huggingface_hub import snapshot_download

    path = snapshot_download(REPO, cache_dir=cache, ignore_patterns=["exam.jsonl"])
    (row,) = json.loads(finish(run("list", "--json")))
    assert (row["model"], row["revisions"], row["path"]) == (REPO, ["main"], path), row
    assert row["runs"], row
    assert finish(run("chat", "--model", REPO, "--no-think", "--max-tokens", "4", "Hello"))
    assert json.loads(finish(run("pull", REPO, "--json")))["downloaded_bytes"] == 0
    finish(run("remove", REPO, "--yes"))
    assert not scan(cache).repos


def test_calla_completes_what_huggingface_hub_began(run, cache, server):
    from huggingface_hub import hf_hub_download

    hf_hub_download(REPO, "config.json", cache_dir=cache)
    (row,) = json.loads(finish(run("list", "--json")))
    assert not row["runs"] and "calla pull" in row["problem"], row
    came = json.loads(finish(run("pull", REPO, "--json")))["downloaded_bytes"]
    assert len(FILES[WEIGHTS]) < came < sum(map(len, FILES.values()))
    scan(cache)


def test_a_pull_under_way_is_seen_and_locks_the_other_out(run, cache, server):
    from filelock import FileLock, Timeout

    server.may_send.clear()
    pull = run("pull", REPO)
    digest = hashlib.sha256(FILES[WEIGHTS]).hexdigest()
    folder = "models--" + REPO.replace("/", "--")
    incomplete = cache / folder / "blobs" / f"{digest}.incomplete"
    wait_for(lambda: incomplete.exists() and incomplete.stat().st_size > 0)
    (seen,) = scan(cache).incomplete_files
    assert seen.file_path == incomplete.resolve()
    lock = FileLock(cache / ".locks" / folder / f"{digest}.lock")
    try:
        lock.acquire(timeout=0)
        raise AssertionError("the blob is not locked")
    except Timeout:
        pass
    pull.kill()
    pull.communicate()
    server.may_send.set()
    # Now the other holds it, and calla waits.
    with lock.acquire(timeout=WAIT_S):
        pull = run("pull", REPO, "-v")
        line = ""
        while "waiting" not in line:
            line = pull.stderr.readline()
            assert line, "it did not wait"
        assert not (cache / folder / "blobs" / digest).exists()
    finish(pull)
    assert not scan(cache).incomplete_files


def test_a_terminal_is_shown_bytes_rate_and_time_left(run, cache, server):
    server.pause_s = 0.05
    pull = run("pull", REPO, terminal=True)
    pull.expect(r"\r\x1b\[K[\d.]+ MB of 11.6 MB, [\d.]+ MB/s, \d+ s left")
    pull.expect_exact("\r\x1b[K" + f"{REPO}: 11.6 MB at {COMMIT[:12]}, 11.6 MB downloaded")
    pull.expect(pexpect.EOF)
    server.pause_s = 0


def test_a_terminal_is_asked_before_anything_is_removed(run, cache, server):
    finish(run("pull", REPO))
    for answer, stays in (("n", True), ("", True), ("y", False)):
        remove = run("remove", REPO, terminal=True)
        remove.expect_exact(f"Remove {REPO}, 11.6 MB on the disk? [y/N] ")
        remove.sendline(answer)
        remove.expect(pexpect.EOF)
        assert bool(scan(cache).repos) == stays, answer


class Hub(http.server.BaseHTTPRequestHandler):
    """The parts of the hub's API that both programs use."""

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == f"/api/models/{REPO}/revision/main":
            files = [{"rfilename": name} for name in FILES]
            self.answer(json.dumps({"id": REPO, "sha": COMMIT, "siblings": files}).encode())
        elif path == f"/api/models/{REPO}/tree/{COMMIT}":
            self.answer(json.dumps([entry(name) for name in FILES]).encode())
        elif path.startswith(f"/{REPO}/resolve/"):
            name = path.rsplit("/", 1)[1]
            self.answer(FILES[name], etag(name), pause=name == WEIGHTS)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, body, etag=None, pause=False):
        start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        if etag:
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "HEAD":
            return
        step = len(body) // 20 if pause else len(body)
        try:
            for at in range(start, len(body), step):
                self.wfile.write(body[at : at + step])
                if pause:
                    self.server.may_send.wait()
                    time.sleep(self.server.pause_s)
        except OSError:
            pass  # a client that was killed

    def log_message(self, *_):
        pass


def etag(name):
    """What the hub names a file by: SHA-256 in large-file storage, git's id elsewhere."""
    if name == WEIGHTS:
        return hashlib.sha256(FILES[name]).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(FILES[name]) + FILES[name]).hexdigest()


def entry(name):
    """A file as the tree of a repository lists it."""
    size = len(FILES[name])
    listed = {"type": "file", "path": name, "size": size, "oid": etag(name)}
    if name == WEIGHTS:
        listed |= {"oid": "0" * 40, "lfs": {"oid": etag(name), "size": size, "pointerSize": 130}}
    return listed


if __name__ == "__main__":
    main()
