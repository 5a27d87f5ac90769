"""The few exceptions of this library. Each message says what was wrong and what would be right."""

_CONTROL = frozenset(map(chr, (*range(32), *range(127, 160), 0x2028, 0x2029)))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class PseudocoresetsError(Exception):
    """Anything this library raises on purpose; the command line turns it into one sentence and status 2.

    Line breaks and control codes, which names and files can bring into a message, are shown as escapes.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("".join(_escaped(each) if each in _CONTROL else each for each in message))


class RenamedWarning(FutureWarning):
    """A name of the last version, which works for one more; the command prints the sentence."""


class InputError(PseudocoresetsError, ValueError):
    """An argument, a name or a setting that cannot be used."""


class FileFormatError(PseudocoresetsError):
    """A file or folder that is not what it should be."""


class DataUnavailableError(PseudocoresetsError):
    """A data set that is neither on this machine nor can be fetched."""


class DivergenceError(PseudocoresetsError):
    """A computation left the finite numbers."""


class DeviceMemoryError(PseudocoresetsError):
    """The device has too little memory even for the smallest split of the work."""
