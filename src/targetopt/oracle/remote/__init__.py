"""Remote oracles: the exchange of questions for answers, and what carries them. Needs ``[remote]``."""

from targetopt.oracle.remote.http import Service
from targetopt.oracle.remote.oracle import About, RemoteOracle
from targetopt.oracle.remote.outcome import Busy, Failed, Reply, Transport
from targetopt.oracle.remote.retries import Retries

__all__ = ["About", "Busy", "Failed", "RemoteOracle", "Reply", "Retries", "Service", "Transport"]
