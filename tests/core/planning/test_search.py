"""The search against every plan there is."""

from __future__ import annotations

import pytest
from tests.core.planning.meshes import Draw, best_score, whole_chunks

from meshnet.core.planning import NoPlan, plan
from meshnet.core.planning.mesh import Machines
from meshnet.core.planning.planning import EXTENSIONS_MAX, WIDTH
from meshnet.core.planning.search import Search

SEEDS = 400


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_plan_scores_as_well_as_the_best_of_all_orders_choices_and_cuts(seed):
    draw = Draw(seed)
    scores = draw.scores()

    found = plan(draw.shape, draw.mesh, draw.wanted, cutting=whole_chunks, chain=draw.chain)

    best = best_score(scores)
    if best is None:
        assert isinstance(found, NoPlan)
    else:
        assert found.best
        assert scores.score(found.hops) == pytest.approx(best, rel=1e-12)


def test_the_random_meshes_are_of_all_kinds():
    """Else the comparison with brute force says little."""
    plans = [
        plan(draw.shape, draw.mesh, draw.wanted, cutting=whole_chunks, chain=draw.chain)
        for draw in map(Draw, range(SEEDS))
    ]
    found = [
        (draw.mesh, made)
        for draw, made in zip(map(Draw, range(SEEDS)), plans, strict=True)
        if not isinstance(made, NoPlan)
    ]

    counts = [len(made.hops) for _, made in found]
    shared = [mesh for mesh, made in found if Machines(mesh).shared(h.node for h in made.hops)]
    assert len(found) > 200
    assert min(counts.count(number) for number in (1, 2, 3)) > 10
    assert len(shared) > 1


def test_a_narrow_search_finds_nothing_better_than_the_exact_one():
    for draw in map(Draw, range(60)):
        scores = draw.scores()
        search = Search(scores, sorted(draw.mesh.nodes), draw.shape.cuts(), {})

        narrow = search.run(width=WIDTH, extensions_max=EXTENSIONS_MAX)
        exact = search.run(extensions_max=EXTENSIONS_MAX)

        if narrow is not None:
            assert exact is not None
            assert exact.score <= narrow.score * (1 + 1e-12)
            assert exact.complete
            assert not narrow.complete


def test_a_search_that_gives_up_says_so_and_keeps_what_it_was_given():
    draw = next(
        d for d in map(Draw, range(100)) if len(d.mesh.nodes) > 3 and best_score(d.scores())
    )
    scores = draw.scores()
    search = Search(scores, sorted(draw.mesh.nodes), draw.shape.cuts(), {})
    first = search.run(width=WIDTH, extensions_max=EXTENSIONS_MAX)

    found = Search(scores, sorted(draw.mesh.nodes), draw.shape.cuts(), {}).run(
        best=first, extensions_max=0
    )

    assert first is not None
    assert found is not None
    assert found.score <= first.score
    assert not found.complete
