"""The webhook's authority and certificate over the years."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from plait_operator.admission.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    AUTHORITY_LIFE,
    AUTHORITY_RENEW,
    BEFORE,
    CERTIFICATE,
    KEY,
    LIFE,
    NEXT,
    RENEW,
    SETTLE,
    NewCertificate,
    bundle_of,
    ensure,
    names_of,
)

NAMES = names_of("plait-admission", "plait-system")
START = datetime(2026, 1, 1, tzinfo=UTC)
A_BIT = timedelta(minutes=1)


def made(data: dict[str, str] | None, now: datetime, names: tuple[str, ...] = NAMES) -> NewCertificate:
    told = ensure(data, dns_names=names, now=now)
    assert told is not None
    assert ensure(told.data, dns_names=names, now=now) is None, "twice in a row changes nothing"
    assert bundle_of(told.data) == told.bundle
    return told


def trusts(bundle: bytes, data: dict[str, str], now: datetime, name: str = NAMES[0]) -> bool:
    """Whether a client with `bundle` takes the certificate of `data`."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    leaf = x509.load_pem_x509_certificate(base64.b64decode(data[CERTIFICATE]))
    try:
        PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(name)).verify(leaf, [])
    except x509.verification.VerificationError:
        return False
    return True


def test_the_first_certificate_is_what_a_client_takes(tmp_path: Path) -> None:
    first = made(None, START)
    assert set(first.data) == {CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY}
    assert all(trusts(first.bundle, first.data, START, name) for name in NAMES)
    assert not trusts(first.bundle, first.data, START, "other.plait-system.svc")
    assert trusts(first.bundle, first.data, START - timedelta(minutes=30)), "clocks differ"
    for name in (CERTIFICATE, KEY):
        (tmp_path / name).write_bytes(base64.b64decode(first.data[name]))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)


def test_two_of_them_have_nothing_in_common() -> None:
    one, two = made(None, START), made(None, START)
    assert not trusts(one.bundle, two.data, START)
    assert one.data[KEY] != two.data[KEY]


def test_a_certificate_is_renewed_in_time_by_the_same_authority() -> None:
    first = made({}, START)
    assert ensure(first.data, dns_names=NAMES, now=START + LIFE - RENEW - A_BIT) is None
    now = START + LIFE - RENEW + A_BIT
    second = made(first.data, now)
    assert second.bundle == first.bundle
    assert second.data[CERTIFICATE] != first.data[CERTIFICATE]
    assert trusts(first.bundle, second.data, now + LIFE - RENEW)


def test_over_ten_years_no_client_ever_meets_a_certificate_that_it_does_not_trust() -> None:
    told = made(None, START)
    data, bundle = told.data, told.bundle
    seen_data, seen_bundle = [(START, data)], [(START, bundle)]
    # Steps that do not divide the lifetimes; beside each change, pods and API servers that lag behind.
    now, end = START, START + AUTHORITY_LIFE + timedelta(days=800)
    authorities = set()
    while now < end:
        now += timedelta(days=17, minutes=7) if not _changing(data) else SETTLE / 3
        if new := ensure(data, dns_names=NAMES, now=now):
            data, bundle = new.data, new.bundle
            seen_data.append((now, data))
            seen_bundle.append((now, bundle))
        authorities.add(data[AUTHORITY])
        late = now - SETTLE / 2
        for served in (data, _as_of(seen_data, late)):
            for known in (bundle, _as_of(seen_bundle, late)):
                assert trusts(known, served, now), now
    assert len(authorities) == 2
    assert not _changing(data)


def _changing(data: dict[str, str]) -> bool:
    return NEXT in data or BEFORE in data


def _as_of(seen: list[tuple[datetime, object]], when: datetime) -> object:
    return [value for at, value in seen if at <= when or at == seen[0][0]][-1]


def test_an_authority_changes_in_steps() -> None:
    first = made(None, START)
    due = START + AUTHORITY_LIFE - AUTHORITY_RENEW + A_BIT
    data = made(first.data, due - A_BIT * 2).data  # its certificate is renewed, the authority stays
    joined = made(data, due)
    assert NEXT in joined.data
    assert joined.data[CERTIFICATE] == data[CERTIFICATE]
    assert ensure(joined.data, dns_names=NAMES, now=due + SETTLE - A_BIT) is None
    issues = made(joined.data, due + SETTLE + A_BIT)
    assert NEXT not in issues.data
    assert issues.data[BEFORE] == data[AUTHORITY]
    assert issues.data[AUTHORITY] == joined.data[NEXT]
    assert trusts(joined.bundle, issues.data, due + SETTLE + A_BIT), "an API server that has not seen it yet"
    left = made(issues.data, due + SETTLE * 2 + A_BIT * 2)
    assert BEFORE not in left.data
    assert left.data[CERTIFICATE] == issues.data[CERTIFICATE]
    assert ensure(left.data, dns_names=NAMES, now=due + SETTLE * 4) is None


def test_an_authority_that_ran_out_is_replaced_at_once_and_stays_in_the_bundle() -> None:
    first = made(None, START)
    now = START + AUTHORITY_LIFE + timedelta(days=1)
    second = made(first.data, now)
    assert trusts(second.bundle, second.data, now)
    assert second.data[BEFORE] == first.data[AUTHORITY]


def test_other_names_need_another_certificate() -> None:
    first = made(None, START)
    names = names_of("other", "plait-system")
    second = made(first.data, START + A_BIT, names)
    assert second.bundle == first.bundle
    assert trusts(second.bundle, second.data, START + A_BIT, names[0])


@pytest.mark.parametrize("name", [CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY])
@pytest.mark.parametrize("content", ["", "not base64!", base64.b64encode(b"no PEM").decode(), None])
def test_what_cannot_be_read_is_made_anew(name: str, content: str | None) -> None:
    first = made(None, START)
    broken = {key: value for key, value in first.data.items() if key != name}
    if content is not None:
        broken[name] = content
    second = made(broken, START + A_BIT)
    assert trusts(second.bundle, second.data, START + A_BIT)


@pytest.mark.parametrize("name", [KEY, AUTHORITY_KEY, CERTIFICATE])
def test_halves_of_two_pairs_are_no_pair(name: str) -> None:
    first, other = made(None, START), made(None, START)
    second = made({**first.data, name: other.data[name]}, START + A_BIT)
    assert trusts(second.bundle, second.data, START + A_BIT)


def test_no_data_no_bundle() -> None:
    assert bundle_of(None) == b""
    assert bundle_of({CERTIFICATE: "x"}) == b""
