"""The tree of errors that flowq raises on purpose.

::

    FlowqError
    ├── ConfigurationError (ValueError)      a parameter is outside its legal range
    │   └── KeyTemplateError                 a key template is malformed, or cannot be filled
    ├── PayloadError (ValueError)            a payload, result or argument JSON cannot carry
    ├── UnknownTask (LookupError)            a name that no declared task has
    ├── UnknownJob (LookupError)             an id that no stored job has
    ├── QueueFull                            the pending cap of a queue refuses an insert
    ├── LeaseLost                            another worker owns the attempt now
    ├── HandlerError                         a task's own code failed
    ├── ResultTimeout (TimeoutError)         the job is not final yet
    ├── JobNotSucceeded                      the job is final, without a result
    │   ├── JobFailed                          its last attempt failed
    │   ├── JobShed                            it was dropped on purpose
    │   ├── JobCancelled                       it was cancelled
    │   └── JobExpired                         it did not start in time
    ├── ServerUnavailable                    no PostgreSQL server could be started here
    └── StoreError                           the store cannot answer
        ├── DatabaseUnreachable                no connection
        ├── SchemaMismatch                     the schema is of another version
        └── KeyLockTimeout                     another open transaction holds the key

Every message names the thing, the value, the relation that fails and, where there is one, the remedy. Nothing
in flowq decides by the text of an error: catch the class.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "DatabaseUnreachable",
    "FlowqError",
    "HandlerError",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotSucceeded",
    "JobShed",
    "KeyLockTimeout",
    "KeyTemplateError",
    "LeaseLost",
    "PayloadError",
    "QueueFull",
    "ResultTimeout",
    "SchemaMismatch",
    "ServerUnavailable",
    "StoreError",
    "UnknownJob",
    "UnknownTask",
]


class FlowqError(Exception):
    """Base of every error that flowq raises on purpose; catch it to catch them all."""


class ConfigurationError(FlowqError, ValueError):
    """Raised when a parameter is outside its legal range; pass a value that keeps the rule in the message."""


class KeyTemplateError(ConfigurationError):
    """Raised when a key template is malformed or a placeholder has no usable value; fix the one it names."""


class PayloadError(FlowqError, ValueError):
    """Raised when JSON cannot carry a value, or it is too large; pass plain JSON, keep the rest apart."""


class UnknownTask(FlowqError, LookupError):
    """Raised when no task of that name is declared here; declare it, or import the module that does."""


class UnknownJob(FlowqError, LookupError):
    """Raised when no job has that id (never stored, or purged); check the id and the namespace."""


class QueueFull(FlowqError):
    """Raised when a queue's pending cap refuses an enqueue; try later, or raise the cap."""


class LeaseLost(FlowqError):
    """Raised when an attempt's lease has lapsed or passed to another worker; discard the result and stop."""


class HandlerError(FlowqError):
    """Raised in place of a task's own exception that cannot be carried as it is; read its text."""


class ResultTimeout(FlowqError, TimeoutError):
    """Raised when a job is not final within the wait; wait longer, or look at the job's state."""


class JobNotSucceeded(FlowqError):
    """Raised when a job ended without the result that is asked for; see the subclass for how it ended."""


class JobFailed(JobNotSucceeded):
    """Raised when the job's last attempt failed; its dead letter holds the error and can be retried."""


class JobShed(JobNotSucceeded):
    """Raised when the job was dropped on purpose; `reason` says by what: retry it by hand, or enqueue less.

    Parameters
    ----------
    message : str
        The text of the dead letter.
    reason : str
        What shed it: ``"rate_limit"``, ``"codel"`` or ``"age"``.
    """

    reason: str

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[JobShed], tuple[str, str]]:
        return type(self), (str(self), self.reason)


class JobCancelled(JobNotSucceeded):
    """Raised when the job, or one that it depends on, was cancelled or lost; enqueue it again if wanted."""


class JobExpired(JobNotSucceeded):
    """Raised when the job did not start before its expiry; give it more time, or the queue more workers."""


class ServerUnavailable(FlowqError):
    """Raised when a local PostgreSQL server cannot be found or started; install one, or pass a DSN."""


class StoreError(FlowqError):
    """Base of the errors of a store: the call may have been right, the store cannot answer."""


class DatabaseUnreachable(StoreError):
    """Raised when no connection to the database can be had; check the DSN and the server, then try again."""


class SchemaMismatch(StoreError):
    """Raised when flowq's schema is missing or of another version; run the migration."""


class KeyLockTimeout(StoreError):
    """Raised when another transaction holds a key past `lock_timeout`; try again, or commit it sooner."""
