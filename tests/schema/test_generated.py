"""generated/ is what proto/ makes; proto/ keeps to buf's rules and breaks no published fact."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import ROOT, unavailable

# The tools are installed on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

FIELD = "bool return_immediately = 4;"


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Installs the pinned tools once; tells a missing network apart from a real failure."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.tools()
    except SystemExit as error:
        unavailable(f"the tools of proto/generate.py cannot be installed: {error}")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of everything that generate.py reads and writes."""
    for name in ("proto", "generated"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def generate(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "proto/generate.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_generated_code_matches_the_schemas() -> None:
    result = generate(ROOT, "--check")
    assert result.returncode == 0, result.stderr


def test_check_notices_a_changed_schema_and_generating_repairs_it(copy: Path) -> None:
    replace(copy / "proto/a2a.proto", FIELD, FIELD.replace("4", "5"))
    (copy / "generated/a2a_grpc_pb/py.typed").unlink()
    (copy / "generated/a2a_grpc_pb/left_over_pb2.py").touch()
    result = generate(copy, "--check")
    assert result.returncode == 1
    assert "a2a_grpc_pb/a2a_pb2.py: differs" in result.stderr
    assert "a2a_grpc_pb/py.typed: missing" in result.stderr
    assert "a2a_grpc_pb/left_over_pb2.py: made by no schema" in result.stderr
    assert "run `python proto/generate.py`" in result.stderr
    assert generate(copy).returncode == 0
    assert generate(copy, "--check").returncode == 0


def test_schemas_are_formatted_follow_the_rules_and_break_nothing() -> None:
    result = generate(ROOT, "--lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_lint_notices_a_changed_field_number(copy: Path) -> None:
    replace(copy / "proto/a2a.proto", FIELD, FIELD.replace("4", "5"))
    result = generate(copy, "--lint")
    assert result.returncode == 1
    assert "return_immediately" in result.stdout + result.stderr
    assert "was deleted" in result.stdout + result.stderr


def test_lint_notices_a_broken_rule(copy: Path) -> None:
    replace(copy / "proto/a2a.proto", "  // Who speaks.\n", "")
    result = generate(copy, "--lint")
    assert result.returncode == 1
    assert 'Field "role" should have a non-empty comment' in result.stdout + result.stderr
