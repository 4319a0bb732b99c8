#!/usr/bin/env python3
"""Runs every command that the documentation pages show, as a reader would, and looks for dead links.

usage: check_commands.py [--keep] FOLDER [PAGE.md ...]

The default pages are README.md, which installs the program, CONTRIBUTING.md and all of docs/*.md, in this
order. FOLDER is created anew and gets a clean copy of the tree: all files that git tracks or does not ignore.
The indented blocks of a page are its commands, one a line (a backslash continues a line); text after "  #" is
a comment for the reader. Blocks of other text must be fenced; the check refuses a page with a command in a
fence, or with indented text that is no block of its own. The commands run in the root of the copy, page after
page, with a home folder in FOLDER whose .local/bin comes first in PATH. A command that an earlier page has
shown, too, is not run again. Each must end with status 0. So that all end within minutes and need no GPU,
some are changed:

    --steps N                     becomes --steps 2; the demo runs 40 steps (TIDE_DEMO_STEPS)
    tidepool ... --model gpt2     gets --seq-len 128: without bf16 instructions 8,192 tokens take two cores
                                  five minutes a step
    meson setup                   builds the CUDA module for the line's architecture, or else as PTX; not
                                  before tests by name
    tools/test.sh                 gets --list, because .ci/run has run the whole suite before
    "# ... hours", "# ... figures"   gets --quick
    "# ... downloads PyTorch"     gets --list, because some GB for every change would be too much
    "# ... from PyPI"             may fail where PyPI can't be reached; the rest of its page is not run then
    "# ... needs a GPU"           may fail with one line that says that there is no GPU, but not with an error
                                  in its options
    "# ... needs nvcc"            may fail with a message about nvcc if there is none, but not with an error
                                  in its options

A fenced block after a plan for a preset machine must be the plan's output, word for word. After the pages,
the check calls the installed program from another folder. It runs wrong commands, to prove that it notices a
failure, and it fails if there is a script under tools/ that neither CI nor a page runs. Prints TAP; the last
line counts: "N passed, N failed". --keep leaves FOLDER.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HAS_NVCC = shutil.which("nvcc") is not None or Path("/usr/local/cuda/bin/nvcc").exists()
NO_GPU = re.compile(r"^[^\n]*no NVIDIA[^\n]*\n$" if HAS_NVCC else r"^[^\n]*no (NVIDIA|CUDA module)[^\n]*\n$")
USAGE = 2
TIMEOUT_SECONDS = 1200
TURN = '{"conversations": [{"from": "human", "value": "chunk %d?"}, {"from": "gpt", "value": "Here."}]}\n'
CHAT = "".join(TURN % i for i in range(200))
TEXT = "a reader who follows these lines should find that each of them works.\n" * 2000


def commands(page):
    """Returns (line number, command, comment) for each command of a page."""
    found, fenced, before, held = [], False, "", ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced and re.match(r"\s*(tools/|tidepool |meson |ninja |make )", line):
            raise SystemExit(f"{page}:{number}: a command in a fence is not run: indent it instead")
        indented = line.startswith("    ") and not fenced and (before == "" or before.startswith("    "))
        if line.startswith(("    ", "\t")) and line.strip() and not fenced and not indented:
            raise SystemExit(f"{page}:{number}: indented, and no block of its own: four spaces, after an empty line")
        before = line if indented or not line.strip() else "text"
        if not line.strip():
            before = ""
        if not indented or not line.strip():
            continue
        held += line.strip()
        if held.endswith("\\"):
            held = held[:-1]
            continue
        command, _, comment = re.sub(r"\s+#\s", "  # ", held, count=1).partition("  # ")
        found.append((number, command.strip(), comment))
        held = ""
    if held:
        raise SystemExit(f"{page}: its last command does not end")
    return found


def dead_links(page):
    """The files that a page links to and that are not in the tree."""
    links = re.findall(r'\]\(([^)\s]+)\)|\b(?:src|srcset|href)="([^"]+)"', page.read_text(encoding="utf-8"))
    names = [(first or second).partition("#")[0] for first, second in links]
    return [name for name in names if name and "://" not in name and not (page.parent / name).exists()]


def shown(page, number):
    """The fenced block that follows the command of that line; "" if there is none."""
    lines = page.read_text(encoding="utf-8").splitlines()[number:]
    if len(lines) < 2 or lines[0].strip() or not lines[1].startswith("```"):
        return ""
    return "".join(line + "\n" for line in lines[2:lines.index("```", 2)])


def adapted(command, comment):
    """The command that the check runs in place of a page's command."""
    given = re.sub(r"--steps \d+", "--steps 2", command)
    given = re.sub(r"(tidepool (?:train|tune|plan)\b.*--model gpt2)(?= )(?!.*--seq-len)", r"\1 --seq-len 128", given)
    if "meson setup" in given and "-Dgpu_architectures" not in given:
        architectures = "ptx90" if HAS_NVCC and "meson test" not in given else "[]"
        given = re.sub(r"(meson setup \S+)", rf"\1 '-Dgpu_architectures={architectures}'", given)
    if re.match(r"(\S+=\S+ )*tools/test\.sh\b", given):
        given = given.replace("tools/test.sh", "tools/test.sh --list", 1)
    if re.search(r"\b(hours|figures)\b", comment):
        given += " --quick"
    if "downloads PyTorch" in comment:
        given += " --list"
    return given


class Copy:
    """A clean copy of the tree in which commands run as in a reader's shell."""

    def __init__(self, folder):
        self.folder, self.tree, self.home = folder, folder / "tree", folder / "home"
        self.runs = {}  # result of each command that has run
        shutil.rmtree(folder, ignore_errors=True)
        self.tree.mkdir(parents=True)
        (self.home / ".local/bin").mkdir(parents=True)
        names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                               capture_output=True, check=True).stdout.split(b"\0")
        for name in sorted({os.fsdecode(name) for name in names if name}):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        (self.tree / "book.txt").write_text(TEXT, encoding="utf-8")
        (self.tree / "chat.jsonl").write_text(CHAT, encoding="utf-8")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDE")}
        self.environment.update(HOME=str(self.home), TIDE_DEMO_STEPS="40", PATH=f"{self.home}/.local/bin:{os.environ['PATH']}")

    def run(self, command):
        with subprocess.Popen(["bash", "-c", command], cwd=self.tree, env=self.environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", start_new_session=True) as shell:
            late = ""
            try:
                out, err = shell.communicate(timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)  # the shell and its child processes
                out, err = shell.communicate()
                late = f"\nno end after {TIMEOUT_SECONDS} s"
        return subprocess.CompletedProcess(command, shell.returncode, out, err + late)

    def works(self, command, comment=""):
        """Returns whether a page's command works, as far as this machine allows; the command that ran; its
        result."""
        given = adapted(command, comment)
        run = self.runs[given] = self.runs.get(given) or self.run(given)
        no_gpu = "needs a GPU" in comment and NO_GPU.match(run.stderr) is not None
        no_nvcc = "needs nvcc" in comment and not HAS_NVCC and run.returncode != USAGE and "nvcc" in run.stdout + run.stderr
        return run.returncode == 0 or no_gpu or no_nvcc, given, run


class Tap:
    def __init__(self):
        self.passed = self.failed = 0

    def ok(self, good, name, run=None):
        self.passed += good
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.passed + self.failed} - {name}", flush=True)
        if not good and run is not None:
            tail = (run.stdout + run.stderr).splitlines()[-40:]
            print("\n".join(f"# {line[:300]}" for line in [f"status {run.returncode}", *tail]), flush=True)


def check_pages(copy, pages, tap):
    ran = []
    for page in pages:
        tap.ok(not dead_links(page), f"{page.name}: links to what is there" + "".join(f", but for {name}" for name in dead_links(page)))
        for number, command, comment in commands(page):
            began = time.monotonic()
            good, given, run = copy.works(command, comment)
            ran.append(given)
            if "from PyPI" in comment and "pip can't install" in run.stderr:
                tap.ok(True, f"{page.name}:{number}: PyPI can't be reached: the page's rest is not run")
                break
            told = shown(page, number) if re.search(r"tidepool plan\b.*--machine \w", command) else ""
            good = good and told in ("", run.stdout)
            tap.ok(good, f"{page.name}:{number}: {command} ({'' if given == command else 'as: ' + given + '; '}"
                         f"{time.monotonic() - began:.0f} s)", run)
    return ran


def check_that_it_can_fail(copy, tap):
    for wrong, comment in (("tidepool train --modle gpt2 --data book.txt", ""), ("tools/demo.sh --fast", ""),
                           ("tools/test.sh fulll", ""), ("tools/bench.sh --speed", "figures"), ("tools/campaign.sh --all", "hours"),
                           ("tools/dev/hf_check.sh bert", "downloads PyTorch"),
                           ("tools/gpu_check.sh --al", "needs a GPU"), ("tools/gpu_check.sh --architecture 90 --only biuld", "needs nvcc"),
                           ("tidepool train --device cuda:0 --data book.txt --stps 2", "needs a GPU")):
        good, _, run = copy.works(wrong, comment)
        tap.ok(not good and run.returncode == USAGE, f"a wrong line is refused: {wrong}", run)


def check_scripts(ran, tap):
    """Each script under tools/ must be run by a page, by .ci/run or by another script that is run, or be
    imported by one."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in [*(ROOT / "tools").iterdir(), *(ROOT / "tools/dev").rglob("*")]
               if path.suffix in (".sh", ".py") and path.is_file()}
    reached, texts = set(), [(ROOT / ".ci/run").read_text(encoding="utf-8"), *ran]
    while texts:
        text = texts.pop()
        for name in scripts:
            called = rf'(\btools|\$\(dirname "\$0"\))(/dev(/gpu)?)?/{re.escape(name)}\b|(?m:^(import {re.escape(Path(name).stem)}$|from {re.escape(Path(name).stem)} import ))'
            if name not in reached and re.search(called, text):
                reached.add(name)
                if name != Path(__file__).name:  # this script names others in its wrong commands
                    texts.append(re.sub(r"(?m)^\s*#.*$", "", scripts[name]))
    for name in sorted(scripts):
        tap.ok(name in reached, f"{name} is run by CI")


def main():
    arguments = sys.argv[1:]
    keep = "--keep" in arguments
    arguments = [argument for argument in arguments if argument != "--keep"]
    pages = [Path(name) for name in arguments[1:]] or PAGES
    is_right = arguments and not any(argument.startswith("-") for argument in arguments)
    if not is_right or not all(page.is_file() for page in pages):
        print("check_commands.py: usage: check_commands.py [--keep] FOLDER [PAGE.md ...]", file=sys.stderr)
        return 2
    copy, tap = Copy(Path(arguments[0]).resolve()), Tap()
    ran = check_pages(copy, pages, tap)
    run = copy.run("cd / && tidepool info")
    tap.ok(run.returncode == 0 and ("no CUDA module" not in run.stdout) == HAS_NVCC, "the installed program, from another folder", run)
    check_that_it_can_fail(copy, tap)
    check_scripts(ran, tap)
    if not keep and tap.failed == 0:
        shutil.rmtree(copy.folder)
    print(f"{tap.passed} passed, {tap.failed} failed")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
