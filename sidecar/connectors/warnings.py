"""What connector kinds warn of in a sound configuration, and credentials that are hardly left out on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.config.keys import Complaint
from sidecar.config.values import Config
from sidecar.connectors.kinds import KINDS


def connector_warnings(config: Config) -> Iterator[Complaint]:
    """Of those that can be asked; one that only stands behind another is that one's business."""
    for connector in config.connectors.values():
        if connector.name in config.only_wrapped:
            continue
        for key, said in KINDS[connector.kind].warnings(connector):
            what, _, hint = said.partition("; ")
            yield Complaint(f'connector "{connector.name}".{key}', what, hint=hint or None)
        asked = KINDS[connector.kind].credential_of(connector)
        if asked and asked.base_url and asked.base_url.startswith("https:") and asked.credential is None:
            what = "is missing, and servers that are reached by https mostly want one"
            hint = 'write: credential = "..." with the name of a file in $CREDENTIALS_DIRECTORY'
            yield Complaint(f'connector "{asked.name}".credential', what, hint=hint)
