"""Policies: frozen parameters, explicit state, and decisions as pure functions of them and an instant.

==================  ===========================================================  ===================
policy              decides                                                      state
==================  ===========================================================  ===================
`Coalesce`          whether a call joins the live job of its key                 the key's holder
`Debounce`          when the one pending job of a key is due                     `Window`
`RateLimit`         whether a due job may start now, and when if not             `Bucket`
`Concurrency`       whether a due job may start beside those that run            none: live leases
`CoDel`             whether the oldest waiting job is shed                       `Rfc8289`, `Slough`
`Retry`             how long a failed job waits                                  its failures
==================  ===========================================================  ===================

Nothing here reads a clock, draws a number, logs or waits: instants (``now_us``) and drawn numbers (``u``) are
arguments. A service and a simulation call the same functions, so they decide alike.
"""

from flowq.policy.coalesce import Accept, Coalesce, Join, argument_key
from flowq.policy.codel import CoDel, CoDelState, Rfc8289, Slough
from flowq.policy.concurrency import Concurrency
from flowq.policy.debounce import Debounce, Window, decide_window
from flowq.policy.flow import Flow, Policy
from flowq.policy.key_template import KeyTemplate
from flowq.policy.rate_limit import Bucket, Rate, RateLimit
from flowq.policy.retry import Retry

__all__ = [
    "Accept",
    "Bucket",
    "CoDel",
    "CoDelState",
    "Coalesce",
    "Concurrency",
    "Debounce",
    "Flow",
    "Join",
    "KeyTemplate",
    "Policy",
    "Rate",
    "RateLimit",
    "Retry",
    "Rfc8289",
    "Slough",
    "Window",
    "argument_key",
    "decide_window",
]
