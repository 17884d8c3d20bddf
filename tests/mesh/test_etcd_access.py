"""Whom an etcd lets in, and what whoever it does not is told."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.mesh.etcd import etcd
from tests.mesh.etcd_roles import USER, certificate, know_users, tls_arguments
from tests.mesh.members import member
from tests.mesh.registry_conformance import TTL_S, watching
from tests.mesh.test_etcd import registry_of

from meshnet.mesh.registry.etcd_gateway import EtcdAccess
from meshnet.mesh.registry.ports import Joined, RegistryLost, RegistryRefused

A, B = member(1), member(2)
KNOWN = EtcdAccess(user=USER[0], password=USER[1])


async def test_a_user_may_do_all_below_its_prefix_and_nothing_elsewhere():
    with etcd() as cluster:
        know_users(cluster)
        async with registry_of(cluster, KNOWN) as registry:
            await registry.announce(A, TTL_S)
            since = (await registry.snapshot()).revision
            assert await registry.compare_and_set("k", None, b"v")
            async with watching(registry, since) as items:
                await registry.announce(B, TTL_S)
                _, joined = await items(2)
            await registry.leave(A.node)

            assert isinstance(joined, Joined)
            assert list((await registry.snapshot()).members) == [B.node]
        async with registry_of(cluster, KNOWN, prefix="other") as registry:
            with pytest.raises(RegistryRefused, match=r"permission denied.*readwrite"):
                await registry.announce(A, TTL_S)
            with pytest.raises(RegistryRefused, match="permission denied"):
                await registry.snapshot()


async def test_who_may_read_members_but_not_watch_all_is_refused():
    with etcd() as cluster:
        know_users(cluster, "mesh/members")
        async with registry_of(cluster, KNOWN) as registry:
            await registry.announce(A, TTL_S)
            since = (await registry.snapshot()).revision
            with pytest.raises(RegistryRefused, match=r"watch of mesh/.*permission denied"):
                await anext(registry.watch(since))  # type: ignore[call-overload]


@pytest.mark.parametrize("access", [EtcdAccess(), EtcdAccess(user=USER[0], password="wrong")])
async def test_whom_an_etcd_does_not_know_is_refused_and_no_password_is_told(access: EtcdAccess):
    with etcd() as cluster:
        know_users(cluster)
        async with registry_of(cluster, access) as registry:
            with pytest.raises(RegistryRefused) as refused:
                await registry.announce(A, TTL_S)

    assert "wrong" not in str(refused.value) + repr(access)


async def test_a_token_that_a_restart_forgot_is_asked_for_again():
    with etcd() as cluster:
        know_users(cluster)
        async with registry_of(cluster, KNOWN) as registry:
            await registry.announce(A, TTL_S)
            cluster.kill()
            cluster.start()

            assert list((await registry.snapshot()).members) == [A.node]


async def test_an_etcd_is_asked_by_tls_and_a_stranger_with_its_address_is_not(tmp_path: Path):
    own, key = certificate(tmp_path)
    trusts = ssl.create_default_context(cafile=str(own))
    with etcd(tls=tls_arguments(own, key)) as cluster:
        async with registry_of(cluster, EtcdAccess(tls=trusts)) as registry:
            await registry.announce(A, TTL_S)
            assert list((await registry.snapshot()).members) == [A.node]
        async with registry_of(cluster, EtcdAccess(ssl.create_default_context())) as registry:
            with pytest.raises(RegistryLost, match="certificate verify failed"):
                await registry.snapshot()
