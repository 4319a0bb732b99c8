#!/usr/bin/env python3
"""Man pages and completion: they must agree with the program's --help, shells must offer exactly what can be
typed, and special characters in texts must break neither roff nor a shell.

usage: test_program_pages.py PROGRAM PAGES STRANGE      prints TAP

PAGES is the folder of the generated pages; STRANGE is the program of tests/program/strange_pages.c, which
prints pages with special characters.
"""
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from shells import Bash, Zsh
from test_program import Tap

ESCAPES = (("\\-", "-"), ("\\(aq", "'"), ("\\(ga", "`"), ("\\(ha", "^"), ("\\(ti", "~"), ("\\&", ""), ("\\e", "\\"))
MAN = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]
BASH = 'source "$1"; at=$2; shift 2; COMP_WORDS=("$@"); COMP_CWORD=$at; _tidepool; printf "%s\\n" "${COMPREPLY[@]}"'


def said(program, *words):
    run = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def flat(text):
    return " ".join(text.split())


def plain(roff):
    """Removes fonts and escapes from a page's text."""
    text = re.sub(r"\\f[BIR]", "", roff)
    for escape, letter in ESCAPES:
        text = text.replace(escape, letter)
    return text


def page_items(roff):
    """Maps the head of each .TP paragraph to its texts."""
    items = {}
    for part in roff.split("\n.TP\n")[1:]:
        head, _, text = part.partition("\n")
        items.setdefault(plain(head), []).append(flat(plain(re.split(r"^\.", text, flags=re.MULTILINE)[0])))
    return items


def help_items(text):
    """Maps each option with its metavar, and each operand, to its text in --help."""
    found = re.findall(r"^  (-\S+(?: \S+)?|[A-Z]+)(?:\n {30,}| {2,}| (?=\S))(.*)$", text, re.MULTILINE)
    return {head.strip(): flat(meaning) for head, meaning in found}


def commands_of(program):
    """Returns the names of the commands in the program's own help."""
    return re.findall(r"^  (\w+) +\S", said(program, "--help"), re.MULTILINE)


def tables_of(program):
    """Maps the words behind the program's name, such as ("trace", "read"), to the options that --help shows
    there. A command with subcommands is present only by these."""
    tables = {}
    for command in commands_of(program):
        text = said(program, command, "--help")
        subcommands = re.findall(r"^  (?!tidepool )([a-z]\w*) +\S", text, re.MULTILINE)
        for words in [(command, name) for name in subcommands] or [(command,)]:
            tables[words] = help_items(said(program, *words, "--help"))
    return tables


def named(options):
    """Returns the sorted options that a completion should offer."""
    return sorted(["--help"] + [head.split()[0] for head in options if head.startswith("-")])


# ---- pages ----

def check_pages(tap, program, pages):
    commands = commands_of(program)
    names = {"tidepool.1"} | {f"tidepool-{command}.1" for command in commands}
    tap.ok({path.name for path in pages.glob("*.1")} == names and len(commands) > 1, "every command has its page", names)
    front = page_items((pages / "tidepool.1").read_text())
    tap.ok(all(command in front for command in commands), "tidepool(1) names every command", front)
    for words, options in tables_of(program).items():
        items = page_items((pages / f"tidepool-{words[0]}.1").read_text())
        missing = {head: text for head, text in options.items() if text not in items.get(head, [])}
        name = f"tidepool-{words[0]}(1) says of each option what `{' '.join(words)} --help` says"
        tap.ok(options and not missing, name, missing)


def check_refusals(tap, program):
    line = "tidepool --generate: must be followed by man, man COMMAND, bash or zsh\n"
    for words in [], ["nonsense"], ["man", "nonsense"], ["man", "train", "plan"], ["bash", "train"]:
        run = subprocess.run([program, "--generate", *words], capture_output=True, text=True, check=False)
        good = run.returncode == 2 and run.stdout == "" and run.stderr == line
        tap.ok(good, f"tidepool --generate {' '.join(words)} is refused", run.stdout + run.stderr)
    with open("/dev/full", "w") as full:
        run = subprocess.run([program, "--generate", "man"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    good = run.returncode == 1 and run.stderr.count("\n") == 1
    tap.ok(good, "a page that can't be written: status 1, one line", run.stderr)


def check_roff(tap, pages, whose):
    """man and groff show the pages without a warning."""
    name = f"man has nothing to say against {whose} pages"
    if shutil.which("man") is None or shutil.which("groff") is None:
        tap.skip(name, "there is no man (Debian's man-db and groff-base)")
        return
    for page in sorted(pages.glob("*.1")):
        run = subprocess.run([*MAN, page], capture_output=True, text=True, check=False)
        tap.ok(run.returncode == 0 and not run.stderr and run.stdout, f"{name}: {page.name}", run.stderr)


def examples_of(page):
    text = "".join(re.findall(r"^\.nf\n(.*?)^\.fi", plain(page.read_text()), re.MULTILINE | re.DOTALL))
    return [line for line in text.replace("\\\n", "").splitlines() if line.startswith("tidepool ")]


def check_examples(tap, program, pages):
    """The program reads options from left to right. So with --nonsense at the end, an example is right if
    that is the first fault found."""
    for page in sorted(pages.glob("tidepool-*.1")):
        wrong = []
        for example in examples_of(page):
            answer = said(program, *shlex.split(example)[1:], "--nonsense")
            if "unknown option --nonsense" not in answer:
                wrong.append(f"{example}: {answer}")
        tap.ok(examples_of(page) and not wrong, f"the program reads the examples of {page.name}", "\n".join(wrong))


# ---- bash ----

def bash_offers(script, folder, *words, at=None):
    """Returns the words that bash offers for words[at], by default the last one."""
    at = len(words) - 1 if at is None else at
    command = ["bash", "--norc", "-c", BASH, "bash", script, str(at), *words]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return sorted(filter(None, run.stdout.splitlines())) + ([run.stderr] if run.stderr else [])


def presets_of(program):
    refusal = said(program, "train", "--model", "nonsense", "--data", "x")
    return re.search(r"neither a preset \((.*?)\)", refusal).group(1).split(", ")


def make_files(folder):
    for name in "book.txt", "gpt2.json", "my text":
        (folder / name).write_text("x")
    (folder / "runs").mkdir()


def check_bash_options(tap, program, script, folder):
    commands = commands_of(program)
    tap.ok(bash_offers(script, folder, "tidepool", "") == sorted(commands), "bash: every command")
    for words, options in tables_of(program).items():
        names = named(options)
        offered = bash_offers(script, folder, "tidepool", *words, "-")
        tap.ok(offered == names, f"bash: every option of {' '.join(words)}", offered)


def check_bash(tap, program, script, folder):
    train = ("tidepool", "train")
    files = ["book.txt", "gpt2.json", "my text", "runs"]
    for name, expected, words in (
            ("a command that is begun", ["info"], ("tidepool", "i")),
            ("options of the program", ["--generate", "--help", "--version"], ("tidepool", "-")),
            ("an option that is begun", ["--device", "--device-memory"], (*train, "--dev")),
            ("an option of another command", ["--threads"], ("tidepool", "info", "--thr")),
            ("values of a choice", ["all", "auto", "none"], (*train, "--recompute", "")),
            ("a value that is begun", ["none"], (*train, "--recompute", "n")),
            ("on or off", ["off", "on"], (*train, "--prefetch", "")),
            ("devices", ["auto", "cuda:0", "host", "null"], (*train, "--device", "")),
            ("a value behind =", ["null"], (*train, "--device", "=", "n")),
            ("values right behind =", ["off", "on"], (*train, "--checks", "=")),
            ("presets and files", sorted([*(name for name in presets_of(program) if name[0] == "g"), "gpt2.json"]), (*train, "--model", "g")),
            ("files", files, (*train, "--data", "")),
            ("a file behind =", ["book.txt"], (*train, "--data", "=", "b")),
            ("folders alone", ["runs"], (*train, "--checkpoint", "")),
            ("no number", [], (*train, "--steps", "")),
            ("nothing that is given already", ["--recompute", "--reduce", "--resume-from"], (*train, "--resume", "--model", "gpt2", "--re")),
            ("what may be given again", ["--freeze"], (*train, "--freeze", "w*", "--fre")),
            ("nothing behind an unknown command", [], ("tidepool", "nonsense", "--")),
    ):
        offered = bash_offers(script, folder, *words)
        tap.ok(offered == expected, f"bash offers {name}", offered)
    offered = bash_offers(script, folder, *train, "--dt", "--dtype", "bf16", at=2)
    tap.ok(offered == [], "bash offers nothing that is given behind it", offered)


def check_typed(tap, shell, name):
    """Types into the shell: a tab behind each incomplete word, then enter."""
    for typed, expected in (
            ("tidepool inf\t --js\t", ["info", "--json"]),
            ("tidepool train --device-m\t 1GiB --opti\t d\t",
             ["train", "--device-memory", "1GiB", "--optimizer-placement", "device"]),
            ("tidepool train --data my\t --prefetch=of\t", ["train", "--data", "my text", "--prefetch=off"]),
            ("tidepool train --device c\t --model gpt2.\t", ["train", "--device", "cuda:0", "--model", "gpt2.json"]),
    ):
        words = shell.words(typed)
        tap.ok(words == expected, f"{name} completes {typed!r}", words)


def typed_in_bash(tap, script, folder):
    shell = Bash(script, folder)
    check_typed(tap, shell, "bash")
    shell.close()


# ---- zsh ----

def check_zsh_options(tap, program, shell):
    offered = shell.offered("tidepool ")
    tap.ok(offered == sorted(commands_of(program)), "zsh: every command", offered)
    for words, options in tables_of(program).items():
        names = named(options)
        offered = shell.offered(f"tidepool {' '.join(words)} -")
        tap.ok(offered == names, f"zsh: every option of {' '.join(words)}", offered)


def check_zsh(tap, program, script, folder):
    if shutil.which("zsh") is None:
        tap.skip("zsh completes the same", "there is no zsh")
        return
    shell = Zsh(script, folder)
    check_zsh_options(tap, program, shell)
    for name, expected, typed in (
            ("values of a choice", ["all", "auto", "none"], "train --recompute "),
            ("devices", ["auto", "cuda:0", "host", "null"], "train --device "),
            ("values behind =", ["off", "on"], "train --checks="),
            ("presets and files", sorted([*(name for name in presets_of(program) if name[0] == "g"), "gpt2.json"]), "train --model g"),
            ("folders alone", ["runs"], "train --checkpoint "),
            ("no number", [], "train --steps "),
            ("nothing that is given already", ["--recompute", "--reduce", "--resume-from"], "train --resume --model gpt2 --re"),
            ("what may be given again", ["--freeze"], "train --freeze x --fre"),
            ("nothing behind --help", [], "--help "),
    ):
        offered = shell.offered("tidepool " + typed)
        tap.ok(offered == expected, f"zsh offers {name}", offered)
    check_typed(tap, shell, "zsh")
    shell.close()


# ---- strange texts ----

def check_strange_page(tap, pages):
    roff = (pages / "tidepool-odd.1").read_text()
    text, items = plain(roff), page_items(roff)
    for head, expected in (
            ("--quick", ['it\'s 100% "quick", [really]: $HOME pwd \\n']),
            ("--again FILE", [".so on. 'tis so (repeatable)"]),
            ("FILE", ["a file", "a file"]),
            ("-o FILE", ["where to (required)"]),
    ):
        tap.ok(items.get(head) == expected, f"strange: what a page says of {head}", items)
    tap.ok(text.count("\n.SS tidepool odd") == 2 and "\n.br\ntidepool odd write" in text, "a command's commands are in its page", text)
    tap.ok("\n.SH is" not in roff and "\n'nor" not in roff, "no text is a macro", roff)
    tap.ok("--" not in roff, "dashes are those that are typed", roff)
    tap.ok("tidepool odd show 'x y' \\\n    --how well\n" in text, "a command of two lines stays one", text)


def check_strange_bash(tap, script, folder):
    odd = ("tidepool", "odd")
    for name, expected, words in (
            ("a command's commands", ["show", "write"], (*odd, "")),
            ("that one's options", ["--again", "--help", "--how", "--quick"], (*odd, "show", "--again", "x", "--")),
            ("none of those that are there", ["--again", "--help", "--quick"], (*odd, "show", "--how", "well", "--")),
            ("files where a file stands alone", ["book.txt"], (*odd, "show", "b")),
            ("files for an option of one letter", ["gpt2.json"], (*odd, "write", "-o", "g")),
            ("folders", ["runs"], (*odd, "write", "--in", "")),
    ):
        offered = bash_offers(script, folder, *words)
        tap.ok(offered == expected, f"strange: bash offers {name}", offered)


def check_strange_zsh(tap, script, folder):
    if shutil.which("zsh") is None:
        tap.skip("strange: zsh completes the same", "there is no zsh")
        return
    shell = Zsh(script, folder)
    for name, expected, typed in (
            ("a command's commands", ["show", "write"], ""),
            ("that one's options", ["--again", "--help", "--how", "--quick"], "show --"),
            ("files where a file stands alone", ["book.txt"], "show b"),
            ("files for an option of one letter", ["gpt2.json"], "write -o g"),
            ("folders", ["runs"], "write --in "),
    ):
        offered = shell.offered("tidepool odd " + typed)
        tap.ok(offered == expected, f"strange: zsh offers {name}", offered)
    for text in ("-- shows: what's [odd]", '-- it\'s 100% "quick", [really]: $HOME `pwd` \\n',
                 "-- $(touch hurt); 'quoted' & <so> on"):
        tap.ok(shell.shows(text), f"strange: zsh shows {text}", shell.said)
    shell.close()


def check_strange(tap, maker, folder):
    pages = folder / "strange"
    pages.mkdir()
    for name, words in {"tidepool.1": "man", "tidepool-odd.1": "man odd", "tidepool": "bash", "_tidepool": "zsh"}.items():
        run = subprocess.run([maker, *words.split()], capture_output=True, text=True, check=False)
        tap.ok(run.returncode == 0 and run.stderr == "", f"strange: {name} is made", run.stderr)
        (pages / name).write_text(run.stdout)
    check_strange_page(tap, pages)
    check_roff(tap, pages, "strange")
    check_strange_bash(tap, pages / "tidepool", folder / "files")
    check_strange_zsh(tap, pages / "_tidepool", folder / "files")
    tap.ok(not list(folder.rglob("hurt")), "no text of a table is run by a shell")


def main():
    program, pages, maker = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="tidepool-pages-") as name:
        folder = Path(name)
        (folder / "files").mkdir()
        make_files(folder / "files")
        check_pages(tap, program, pages)
        check_refusals(tap, program)
        check_roff(tap, pages, "its")
        check_examples(tap, program, pages)
        check_bash_options(tap, program, pages / "tidepool", folder / "files")
        check_bash(tap, program, pages / "tidepool", folder / "files")
        typed_in_bash(tap, pages / "tidepool", folder / "files")
        check_zsh(tap, program, pages / "_tidepool", folder / "files")
        check_strange(tap, maker, folder)
    tap.done()


if __name__ == "__main__":
    main()
