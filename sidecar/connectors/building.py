"""From a checked configuration to its connectors, each with its credential; at a reload, what stays the same stays.

A connector that is kept has its connections to the provider, or its children.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.config.values import Config
from sidecar.config.values import Connector as ConnectorTerms
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.promise import Connector
from sidecar.ops import credentials
from sidecar.ops.credentials import CredentialFault, Secret


class Built(Struct, frozen=True):
    """A connector, and what it was made of."""

    connector: Connector
    terms: ConnectorTerms
    secret: Secret | None


def build_all(config: Config, before: Mapping[str, Built]) -> dict[str, Built]:
    """Every connector that can be asked for; one that only stands behind another is part of that.

    Those of `before` that would come out the same are in it as they are. Raises ConfigFaults with everything that is
    wrong in any of them.
    """
    built: dict[str, Built] = {}
    complaints: list[Complaint] = []
    only_wrapped = config.only_wrapped
    for name, wanted in config.connectors.items():
        if name in only_wrapped:
            continue
        owner = KINDS[wanted.kind].credential_of(wanted)
        try:
            built[name] = _built(wanted, _secret(owner) if owner else None, before.get(name))
        except CredentialFault as fault:
            complaints.append(Complaint(f'connector "{owner.name if owner else name}".credential', str(fault)))
        except ConfigFaults as faults:
            complaints += [
                Complaint(f'connector "{name}".{one.path}', one.what, one.line, one.hint) for one in faults.complaints
            ]
    if complaints:
        raise ConfigFaults(complaints)
    return built


def _built(wanted: ConnectorTerms, secret: Secret | None, before: Built | None) -> Built:
    kind = KINDS[wanted.kind]
    is_same = before is not None and before.terms == wanted and _is_same(before.secret, secret)
    if before is not None and is_same and kind.stays(before.connector, wanted):
        return before
    return Built(kind.build(wanted, secret), wanted, secret)


def _secret(connector: ConnectorTerms) -> Secret | None:
    wanted = connector.credential
    return None if wanted is None else credentials.load(name=wanted.name, file=wanted.file, env=wanted.env)


def _is_same(one: Secret | None, other: Secret | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.is_same(other)
