"""The few exceptions of this library. Each message says what was wrong and what would be right."""

from pseudocoresets.core.text import printable


class PseudocoresetsError(Exception):
    """Anything this library raises on purpose; the command line turns it into one sentence and status 2.

    Line breaks and control codes, which names and files can bring into a message, are shown as escapes.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class RenamedWarning(FutureWarning):
    """A name of the last version, which works for one more; the command prints the sentence."""


class PassedOverWarning(UserWarning):
    """Something in the data that cannot be used and was left out; the command prints the sentence."""


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


class WorkerLostError(PseudocoresetsError):
    """A process or a machine that worked on a unit went away, or cannot be reached."""
