"""From a checked configuration to its connectors, each with its credential; at a reload, what stays the same stays.

A connector that is kept has its connections to the provider, or its children.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.config.values import Connector as ConnectorTerms
from sidecar.config.values import CredentialName
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.promise import Connector
from sidecar.ops import credentials
from sidecar.ops.credentials import CredentialFault, Secret


class Built(Struct, frozen=True):
    """A connector, and what it was made of."""

    connector: Connector
    terms: ConnectorTerms
    secret: Secret | None


def build_all(
    wanted_by_path: Mapping[str, ConnectorTerms], before: Mapping[str, Built]
) -> tuple[dict[str, Built], list[Complaint]]:
    """These connectors by name, and everything that is wrong in any of them, at its path (`connector[0].script`).

    Those of `before` that would come out the same are in it as they are.
    """
    built: dict[str, Built] = {}
    complaints: list[Complaint] = []
    for path, wanted in wanted_by_path.items():
        name = wanted.name
        owner = KINDS[wanted.kind].credential_of(wanted)
        try:
            built[name] = _built(wanted, _secret(owner) if owner else None, before.get(name))
        except CredentialFault as fault:
            at = path if owner is None or owner.name == name else f'connector "{owner.name}"'
            complaints.append(Complaint(f"{at}.credential", str(fault), hint=fault.hint))
        except ConfigFaults as faults:
            complaints += [Complaint(f"{path}.{one.path}", one.what, hint=one.hint) for one in faults.complaints]
    return built, complaints


def _built(wanted: ConnectorTerms, secret: Secret | None, before: Built | None) -> Built:
    kind = KINDS[wanted.kind]
    is_same = before is not None and before.terms == wanted and _is_same(before.secret, secret)
    if before is not None and is_same and kind.stays(before.connector, wanted):
        return before
    return Built(kind.build(wanted, secret), wanted, secret)


def unusable(names: Mapping[str, CredentialName]) -> Iterator[Complaint]:
    """What is wrong with the credentials that these tables name, whatever else is wrong with the tables."""
    for path, wanted in names.items():
        try:
            credentials.load(name=wanted.name, file=wanted.file, env=wanted.env)
        except CredentialFault as fault:
            yield Complaint(f"{path}.credential", str(fault), hint=fault.hint)


def _secret(connector: ConnectorTerms) -> Secret | None:
    wanted = connector.credential
    return None if wanted is None else credentials.load(name=wanted.name, file=wanted.file, env=wanted.env)


def _is_same(one: Secret | None, other: Secret | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.is_same(other)
