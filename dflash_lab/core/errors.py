"""Errors a user can cause, each one line: what was expected, what came, what to do.

DFlashLabError                 everything below; the command line prints it and exits with 2
├── ConfigError                a checkpoint's config.json: missing, unknown, out of range
├── CheckpointError            tensors: missing, doubled, of another shape
├── TargetError                the target model: unsupported family, no such layer, cannot roll back
├── RequestError               the request: empty prompt, too long, impossible block size
├── NumericsError              not-a-number or infinity, named with layer and position
├── HookError                  an unknown hook point, or one that a fused kernel does not make
├── BackendError               kernels, device or optional package asked for and not there
├── TraceError                 a trace file: truncated, of a newer schema, not a trace
├── DataError                  a prompt set or corpus: not found, too small, of another target
├── ServerError                a live server: not there, no such model, refuses, answers what cannot be read
└── RunError                   a recorded run of a server: broken, of a newer schema, not like the one beside it
"""


class DFlashLabError(Exception):
    """Base of every error that is the user's to mend; its text is one line."""


class ConfigError(DFlashLabError):
    """A drafter's configuration cannot be used as it stands."""


class CheckpointError(DFlashLabError):
    """A checkpoint's tensors do not fit its configuration."""


class TargetError(DFlashLabError):
    """The target model cannot do what is asked of it."""


class RequestError(DFlashLabError):
    """A generation request that cannot be carried out."""


class NumericsError(DFlashLabError):
    """A tensor holds not-a-number or infinity; the text names layer and position."""


class HookError(DFlashLabError):
    """A hook point that does not exist or is not materialised on this path."""


class BackendError(DFlashLabError):
    """Kernels, a device or an optional package that was asked for is not available."""


class TraceError(DFlashLabError):
    """A trace file that cannot be read."""


class DataError(DFlashLabError):
    """A prompt set or a corpus that cannot be used."""


class ServerError(DFlashLabError):
    """A live server that cannot be measured as asked."""


class RunError(DFlashLabError):
    """A recorded run of a server that cannot be read, resumed or compared."""
