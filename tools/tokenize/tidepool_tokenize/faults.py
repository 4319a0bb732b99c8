"""The errors that end a run or refuse a line, and the form in which a user reads them: one printable line."""

LONGEST = 300


class Failure(Exception):
    """Ends the run with status 1; the text is the whole message."""


class BadLine(Exception):
    """Refuses one line of the input; the text says why."""


def printable(text):
    """Returns the text on one line, without control characters, and cut where it is very long."""
    line = " ".join(str(text).split())
    line = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in line)
    return line if len(line) <= LONGEST else line[:LONGEST] + "..."


def reason(error):
    """Returns an exception as a clause: the system's words for an OSError, else its text or its type."""
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename is not None else ""
        return printable(f"{named}{error.strerror}")
    return printable(error) or type(error).__name__
