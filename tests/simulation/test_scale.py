"""Meshes that begin whole, of machines as others measured them, are told what they cost."""

from meshnet.simulation.scale import simulate_scale


def test_a_small_mesh_serves_its_chats_and_its_registrys_traffic_is_counted():
    costs = simulate_scale(10, seconds=60.0, chats=2)

    assert (costs.wrong, costs.unfinished, costs.tokens) == (0, 0, 40)
    assert costs.availability == 1.0
    assert costs.hops > 1
    assert costs.tokens_per_s > 0.0
    # Ten leases of ten seconds, each renewed every 2.5 to 3.3 s.
    assert 3.0 < costs.calls_per_s["announce"] < 4.5
    assert costs.bytes_per_s["snapshot"] > costs.bytes_per_s["changes"] > 0.0
