"""The errors a user can cause, each with the exit code the command line ends with.

Raise one of these, with a single sentence that names the file, line or key and the way out, wherever a user's input
is at fault. The command line prints the sentence alone; anything else that escapes is a defect and exits with 1.
"""


class ElectraError(Exception):
    """Base of every error with a user-facing sentence; `exit_code` is the process's exit status."""

    exit_code = 1


class ConfigError(ElectraError):
    """The configuration is wrong: an unknown key, a value out of range, a changed identity."""

    exit_code = 2


class PreflightError(ElectraError):
    """The surroundings are not ready: an unwritable folder, a full disk, a service out of reach."""

    exit_code = 3


class StoreError(PreflightError):
    """A disk or an object store gives no answer now: nobody's mistake, and it may be gone when it is tried again."""


class DataError(ElectraError):
    """The data is missing, empty, truncated or altered."""

    exit_code = 4


class CheckpointError(ElectraError):
    """No valid checkpoint where one is needed."""

    exit_code = 5


class DivergedError(ElectraError):
    """Training produced numbers that cannot be continued from."""

    exit_code = 6


class HungError(ElectraError):
    """A rank made no progress within the seconds allowed; the watchdog ended the group."""

    exit_code = 7


class UploadError(ElectraError):
    """A hub refused what was to be uploaded, or its answer says that the upload cannot go on."""

    exit_code = 8


class CheckError(ElectraError):
    """A check that the result depends on did not hold."""

    exit_code = 9


class StoppedError(ElectraError):
    """Training was asked to stop: it saved and ended early; the same command again resumes."""

    exit_code = 75
