"""The Python that has the packages: the running one, or the one of a virtual environment that --setup makes.

The environment lies in ~/.local/share/tidepool/venv (under XDG_DATA_HOME if that is set) or in the folder
that TIDEPOOL_VENV names. A virtual environment can't be moved, so --setup makes it in its place: it writes a
file UNFINISHED before anything else and removes it last. A folder with that file passes as no environment;
the next --setup removes it. An environment that somebody else made is taken as it is.
"""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .faults import Failure, printable

PACKAGES = ["tokenizers", "transformers", "jinja2", "google-crc32c", "numpy"]
MODULES = [package.replace("-", "_") for package in PACKAGES]
UNFINISHED = "tidepool-unfinished"


def folder():
    named = os.environ.get("TIDEPOOL_VENV")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(named) if named else Path(data).expanduser() / "tidepool/venv"


def python_of(place):
    return place / "bin/python"


def is_ready(place):
    return python_of(place).exists() and not (place / UNFINISHED).exists()


def missing():
    """Returns the modules that the running Python lacks."""
    return [name for name in MODULES if importlib.util.find_spec(name) is None]


def enter(launcher, arguments):
    """Returns if the running Python has the packages; else runs the launcher anew in the environment."""
    lacks = missing()
    if not lacks:
        return
    place = folder()
    if not is_ready(place):
        raise Failure(
            f"it needs Python packages ({', '.join(PACKAGES)}): run tidepool-tokenize --setup once, "
            f"which installs them into {place}")
    if os.path.realpath(sys.prefix) == os.path.realpath(place):
        raise Failure(f"{place} lacks {', '.join(lacks)}: run tidepool-tokenize --setup")
    python = str(python_of(place))
    try:
        os.execv(python, [python, str(launcher), *arguments])
    except OSError as error:
        raise Failure(f"{python}: {error.strerror}: run tidepool-tokenize --setup") from error


def has_packages(place):
    script = ("import importlib.util as util, sys; "
              "sys.exit(any(util.find_spec(name) is None for name in sys.argv[1:]))")
    return subprocess.run([python_of(place), "-c", script, *MODULES], capture_output=True,
                          check=False).returncode == 0


def setup():
    """Makes the environment and installs the packages. If this fails, the folder is gone, or marked as
    unfinished if another maker's environment was there before."""
    place = folder()
    try:
        if is_ready(place) and has_packages(place):
            print(f"{place} has all packages", flush=True)
            return
        was_there = _clear(place)
        place.mkdir(parents=True, exist_ok=True)
        (place / UNFINISHED).touch()
    except OSError as error:
        raise Failure(f"{place}: {error.strerror}") from error
    try:
        _fill(place)
        (place / UNFINISHED).unlink()
    except BaseException:
        if not was_there:
            shutil.rmtree(place, ignore_errors=True)
        raise
    print("ready", flush=True)


def _clear(place):
    """Removes an unfinished or broken environment; returns whether one stays to be added to."""
    if not place.exists() or not any(place.iterdir()):
        return False
    is_environment = (place / "pyvenv.cfg").exists()
    if not is_environment and not (place / UNFINISHED).exists():
        raise Failure(f"{place} holds other files: name an empty folder in TIDEPOOL_VENV")
    if is_ready(place):
        return True
    shutil.rmtree(place)
    return False


def _fill(place):
    if not python_of(place).exists():
        if importlib.util.find_spec("ensurepip") is None:
            raise Failure(
                f"{sys.executable} can't make virtual environments: install the package python3-venv")
        print(f"making a virtual environment in {place}", flush=True)
        _call([sys.executable, "-m", "venv", place], "can't make the virtual environment")
    print(f"installing {' '.join(PACKAGES)} from PyPI", flush=True)
    pip = [python_of(place), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    _call([*pip, "--retries", "1", *PACKAGES], "pip can't install the packages")


def _call(command, fault):
    run = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         errors="replace", check=False)
    if run.returncode == 0:
        return
    lines = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    if any("ensurepip" in line for line in lines):
        raise Failure(f"{fault}: {sys.executable} has no ensurepip: install the package python3-venv")
    errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"status {run.returncode}"]
    raise Failure(f"{fault}: {printable(errors[-1].removeprefix('ERROR: '))}")
