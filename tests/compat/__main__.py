"""`python -m tests.compat CHECKOUT`: the tests of a checkout of Megatron-Energon or Megatron-Bridge, run on ours; of
Megatron-LM, which has none for it, its multimodal example, as `test_megatron_lm.py` runs it.

Each test file runs as it is in a process of its own, in which `megatron.energon` is this package (`alias/`). A table
tells what passed. Tests that cannot apply are those that `not_applicable.yaml` lists, with the reason. Ends with 1 if
another test fails, or if a listed one passes and its reason does not begin with "sometimes passes".

With `--hook-alone`, the tests run as any program does that calls `replace_energon()` (`hook/`), without what `alias/`
adapts: pickles in the data are refused, and names that are left out raise. Ends with 1 if a file cannot be imported.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

HOOK_ALONE = "--hook-alone"

Outcomes = dict[str, str]
"""passed, failed or skipped by the name of a test."""


def test_files(checkout: Path) -> list[Path]:
    """The test files of Energon; of Bridge those that mention Energon."""
    if (checkout / "src/megatron/energon").is_dir():
        return sorted((checkout / "tests").glob("test_*.py"))
    if (checkout / "src/megatron/bridge").is_dir():
        found = sorted((checkout / "tests/unit_tests").rglob("test_*.py"))
        return [file for file in found if "energon" in file.read_text().lower()]
    raise SystemExit(f"{checkout}: expected a checkout of Megatron-Energon, Megatron-Bridge or Megatron-LM")


def run(checkout: Path, file: Path, arguments: list[str]) -> Outcomes:
    """The outcomes of a file's tests."""
    is_bridge = (checkout / "src/megatron/bridge").is_dir()
    paths = [HERE / ("hook" if HOOK_ALONE in arguments else "alias"), *([checkout / "src"] if is_bridge else []), ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-o", "addopts=", "--timeout=120", "--timeout-method=signal", str(file)]
        command += [argument for argument in arguments if argument != HOOK_ALONE]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if not report.is_file():
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
            return {"(the file)": "failed"}
        if os.environ.get("COMPAT_OUTPUT"):
            Path(os.environ["COMPAT_OUTPUT"], f"{file.stem}.log").write_text(done.stdout + done.stderr)
        found: Outcomes = {}
        for test, outcome in outcomes(report):  # several of a test with sub-tests: it passes if all do
            found[test] = outcome if found.get(test, "passed") == "passed" else found[test]
        return found


def outcomes(report: Path) -> Iterator[tuple[str, str]]:
    """(test, outcome) of a report of pytest; a file that cannot be imported is one failed test."""
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield case.get("name", "") if case.get("classname") else "(the file)", outcome


def not_applicable() -> dict[tuple[str, str], str]:
    """The reason by (file, test), of all libraries in `not_applicable.yaml`."""
    reasons: dict[tuple[str, str], str] = {}
    for files in yaml.safe_load((HERE / "not_applicable.yaml").read_text()).values():
        for file, groups in files.items():
            reasons |= {(file, test): group["why"] for group in groups for test in group["tests"]}
    return reasons


def fits(listed: str, test: str) -> bool:
    """Whether a listed name, which `...` may end, is that of a test."""
    return test.startswith(listed.removesuffix("...")) if listed.endswith("...") else test == listed


def main() -> int:
    """Run the tests, print the table."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("make compat CHECKOUT=path: the folder of a checkout of Megatron-Energon, -Bridge or -LM")
    checkout, arguments = Path(sys.argv[1]).absolute(), sys.argv[2:]
    if (checkout / "examples/multimodal/dataloader_provider.py").is_file():
        environment = os.environ | {"BRIDGE_DATA_MEGATRON_LM": str(checkout)}
        command = [sys.executable, "-m", "pytest", "-v", str(HERE / "test_megatron_lm.py"), *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode
    chosen = [argument for argument in arguments if argument.endswith(".py")]
    rest = [argument for argument in arguments if argument not in chosen]
    reasons, wrong = not_applicable(), []
    sums = {"passed": 0, "failed": 0, "skipped": 0, "n/a": 0}
    print(f"{'file':<44}{'passed':>8}{'failed':>8}{'n/a':>6}{'skipped':>9}")
    for file in test_files(checkout):
        if chosen and file.name not in chosen:
            continue
        counts = dict.fromkeys(sums, 0)
        for test, outcome in run(checkout, file, rest).items():
            listed = (why for (name, known), why in reasons.items() if name == file.name and fits(known, test))
            reason = next(listed, None)
            is_excused = reason is not None and outcome == "failed" and HOOK_ALONE not in rest
            counts["n/a" if is_excused else outcome] += 1
            if HOOK_ALONE in rest:
                wrong += [f"{file.name} cannot be imported"] if test == "(the file)" else []
                continue
            if outcome == "failed" and reason is None:
                wrong.append(f"{file.name}::{test} fails")
            if outcome == "passed" and reason and not reason.startswith("sometimes passes"):
                wrong.append(f"{file.name}::{test} passes, but is listed")
        print(
            f"{file.name:<44}{counts['passed']:>8}{counts['failed']:>8}{counts['n/a']:>6}{counts['skipped']:>9}",
            flush=True,
        )
        sums = {kind: sums[kind] + counts[kind] for kind in sums}
    print(f"{'all':<44}{sums['passed']:>8}{sums['failed']:>8}{sums['n/a']:>6}{sums['skipped']:>9}")
    print(*(f"  {line}" for line in wrong), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
