"""Whether the hub can be reached, asked once and quickly.

The hub's own clients retry for half a minute before they say that there is no network.
"""

from __future__ import annotations

PROBE_SECONDS = 5.0


def hub_fault() -> str | None:
    """Why the hub cannot be reached, or None where it can, or where offline mode is on."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # whatever HTTP library the client uses, the hub is out of reach
        return f"the hub at {constants.ENDPOINT} is not reachable ({type(error).__name__}: {error})"
    return None
