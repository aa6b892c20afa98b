#!/usr/bin/env python3
"""Writes generated/a2a_grpc_pb/ from the schemas in proto/, and checks both.

The tools are pinned in proto/requirements.txt and live in a virtual environment of their own under
the user's cache directory, made on first use. Needs Python 3.11 or newer and nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
REQUIREMENTS = PROTO / "requirements.txt"
BASELINE = PROTO / "baseline.binpb"
PACKAGE = "a2a_grpc_pb"
OUTPUT = ROOT / "generated" / PACKAGE

INIT = '''\
"""Generated from proto/ by `python proto/generate.py`; never edited by hand.

Import the messages through `a2a_grpc.pb`: one process can hold only one set of A2A classes.
"""
'''


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes, where the platform has such locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            import fcntl
        except ImportError:
            pass
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def tools() -> Path:
    """The scripts directory of the environment with the pinned tools, made if there is none."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(python.encode() + REQUIREMENTS.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "a2a-grpc"
    environment = cache / f"proto-{key}"
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    ready = environment / ".ready"
    with locked(cache / f"proto-{key}.lock"):
        if not ready.exists():
            print(f"installing the generator into {environment}", file=sys.stderr)
            run(sys.executable, "-m", "venv", "--clear", environment)
            pip = (scripts / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
            run(*pip, "install", "--only-binary", ":all:", "--requirement", REQUIREMENTS)
            ready.touch()
    return scripts


def run(*command: str | Path) -> None:
    """Runs a command in the repository's root; its failure ends the program."""
    result = subprocess.run([str(part) for part in command], cwd=ROOT, check=False)
    if result.returncode:
        sys.exit(f"failed with status {result.returncode}: {' '.join(map(str, command))}")


def protoc(scripts: Path, *arguments: str | Path) -> None:
    """Runs protoc with google/api and google/protobuf on its path."""
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    libraries = subprocess.check_output([scripts / "python", "-c", find], text=True).strip()
    run(scripts / "python", "-m", "grpc_tools.protoc", f"-I{libraries}", *arguments)


def schemas() -> list[str]:
    return sorted(path.name for path in PROTO.glob("*.proto"))


def copy_into(root: Path, directory: str) -> None:
    """Copies the schemas into a directory below `root` that their imports of one another name."""
    (root / directory).mkdir(parents=True)
    for name in schemas():
        text = (PROTO / name).read_text(encoding="utf-8")
        for imported in schemas():
            text = text.replace(f'import "{imported}"', f'import "{directory}/{imported}"')
        (root / directory / name).write_text(text, encoding="utf-8")


def generate(scripts: Path, target: Path) -> None:
    """Fills the directory `target`, which exists and is empty, with the package's files."""
    with tempfile.TemporaryDirectory() as temporary:
        # Within the package's directory protoc writes absolute imports, and registers the files
        # under names that no other library uses (a2a-sdk has taken plain a2a.proto).
        sources = Path(temporary) / "sources"
        copy_into(sources, PACKAGE)
        protoc(
            scripts,
            f"-I{sources}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={temporary}",
            f"--grpc_python_out={temporary}",
            f"--mypy_out=quiet:{temporary}",
            f"--mypy_grpc_out=quiet:{temporary}",
            *(f"{PACKAGE}/{name}" for name in schemas()),
        )
        for path in (Path(temporary) / PACKAGE).iterdir():
            shutil.copyfile(path, target / path.name)
    (target / "__init__.py").write_text(INIT, encoding="utf-8")
    (target / "py.typed").touch()


def files(directory: Path) -> dict[str, str]:
    if not directory.is_dir():
        return {}
    paths = (path for path in directory.iterdir() if path.is_file())
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def write(scripts: Path) -> None:
    """Brings generated/ up to date and removes what no schema makes any more."""
    with tempfile.TemporaryDirectory() as temporary:
        generate(scripts, Path(temporary))
        wanted = files(Path(temporary))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    present = files(OUTPUT)
    for name in present.keys() - wanted.keys():
        (OUTPUT / name).unlink()
    for name, text in wanted.items():
        if present.get(name) != text:
            (OUTPUT / name).write_text(text, encoding="utf-8")
            print(f"wrote {(OUTPUT / name).relative_to(ROOT)}")


def check(scripts: Path) -> None:
    """Ends the program with status 1 if generated/ is not what the schemas make."""
    with tempfile.TemporaryDirectory() as temporary:
        generate(scripts, Path(temporary))
        wanted = files(Path(temporary))
    present = files(OUTPUT)
    drift = False
    for name in sorted(wanted.keys() | present.keys()):
        if present.get(name) == wanted.get(name):
            continue
        drift = True
        path = f"generated/{PACKAGE}/{name}"
        if name not in present:
            print(f"{path}: missing", file=sys.stderr)
        elif name not in wanted:
            print(f"{path}: made by no schema", file=sys.stderr)
        else:
            print(f"{path}: differs", file=sys.stderr)
            lines = (present[name].splitlines(), wanted[name].splitlines())
            difference = difflib.unified_diff(*lines, "committed", "regenerated", n=1, lineterm="")
            for line in list(difference)[:20]:
                print(f"  {line[:160]}", file=sys.stderr)
    if drift:
        sys.exit("generated/ does not match proto/: run `python proto/generate.py` and commit")
    print("generated/ matches proto/")


def image(scripts: Path, target: Path, *, source_info: bool) -> None:
    """Writes the schemas and all they import as one file that buf reads without a network."""
    with tempfile.TemporaryDirectory() as temporary:
        # buf.yaml names the files by their paths in the repository.
        copy_into(Path(temporary), PROTO.name)
        protoc(
            scripts,
            f"-I{temporary}",
            "--include_imports",
            *(["--include_source_info"] if source_info else []),
            f"--descriptor_set_out={target}",
            *(f"{PROTO.name}/{name}" for name in schemas()),
        )


def lint(scripts: Path) -> None:
    """Runs buf: the format, the rules of buf.yaml, and no breaking change since the baseline."""
    buf = scripts / "buf"
    with tempfile.TemporaryDirectory() as temporary:
        current = Path(temporary) / "current.binpb"
        image(scripts, current, source_info=True)
        run(buf, "format", "proto", "--diff", "--exit-code")
        # --path: the imports in the image are other people's schemas, not ours to judge.
        run(buf, "lint", current, "--path", "proto")
        run(buf, "breaking", current, "--against", BASELINE, "--path", "proto")
    print("proto/ is formatted, follows buf.yaml, and breaks nothing")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Without an option: write generated/.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail if generated/ is out of date")
    mode.add_argument("--lint", action="store_true", help="buf format, lint and breaking")
    mode.add_argument(
        "--baseline",
        action="store_true",
        help="take the schemas as they are for what --lint compares with (a release, not a fix)",
    )
    options = parser.parse_args(arguments)
    scripts = tools()
    if options.check:
        check(scripts)
    elif options.lint:
        lint(scripts)
    elif options.baseline:
        image(scripts, BASELINE, source_info=False)
        print(f"wrote {BASELINE.relative_to(ROOT)}")
    else:
        write(scripts)


if __name__ == "__main__":
    main()
